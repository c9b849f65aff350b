// The module qkv._dist: attention over a sequence that several ranks hold, on a transport that Python brings.
#include <nanobind/nanobind.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include "arrays/array.h"
#include "arrays/choice.h"
#include "attention/options.h"
#include "bindings.h"
#include "qkv/dist/agree.h"
#include "qkv/dist/context_parallel.h"

namespace qkv::python {

namespace {

/// A transport of a Python object: rank, size, send(to, bytes) and receive(from, bytes) -> ticket, poll(ticket) ->
/// bool. Called without the interpreter's lock.
class PythonTransport final : public dist::Transport {
  /// A Python exception ends the call as an error of the transport.
  template <class Call> static auto with_lock(const Call& call) {
    const nb::gil_scoped_acquire lock;
    try {
      return call();
    } catch (const nb::python_error& error) {
      throw dist::TransportError(std::string("[transport] ") + nb::str(error.value()).c_str());
    }
  }

 public:
  PythonTransport(const PythonTransport&) = delete;  // what is under way is one object's
  PythonTransport& operator=(const PythonTransport&) = delete;
  explicit PythonTransport(nb::object object)
      : object_(std::move(object)),
        rank_(nb::cast<int>(object_.attr("rank"))),
        size_(nb::cast<int>(object_.attr("size"))) {}

  int rank() const override { return rank_; }
  int size() const override { return size_; }
  dist::Ticket send(int to, std::span<const std::byte> bytes) override {
    // Nobody writes there; torch.frombuffer would warn about memory that may not be written.
    return start("send", to, const_cast<std::byte*>(bytes.data()), bytes.size());
  }
  dist::Ticket receive(int from, std::span<std::byte> bytes) override {
    return start("receive", from, bytes.data(), bytes.size());
  }
  bool poll(dist::Ticket ticket) override {
    return with_lock([&] { return nb::cast<bool>(object_.attr("poll")(ticket.id)); });
  }

 private:
  dist::Ticket start(const char* method, int peer, std::byte* data, std::size_t size) {
    return with_lock([&] {
      const auto memory =
          nb::steal(PyMemoryView_FromMemory(reinterpret_cast<char*>(data), static_cast<Py_ssize_t>(size), PyBUF_WRITE));
      return dist::Ticket{nb::cast<Index>(object_.attr(method)(peer, memory))};
    });
  }
  nb::object object_;
  int rank_, size_;
};

dist::ContextParallelOptions cut_of(const std::string& layout, Index block, Index turns) {
  return {.layout = choice<dist::Layout>("[context_parallel] layout", layout,
              {{"contiguous", dist::Layout::kContiguous}, {"zig-zag", dist::Layout::kZigZag}}),
      .block = block,
      .turns = turns};
}
dist::Method method_of(const std::string& name) {
  return choice<dist::Method>("[context_parallel] method", name,
      {{"all-gather", dist::Method::kAllGather}, {"ring", dist::Method::kRing}, {"ulysses", dist::Method::kUlysses}});
}

class ContextParallel {
 public:
  ContextParallel(
      nb::object transport, const std::string& layout, const std::string& method, Index block, Index turns, Index chunk)
      : transport_(std::move(transport)), cut_(cut_of(layout, block, turns)) {
    cut_.method = method_of(method);
    cut_.chunk = chunk;
    dist::ContextParallel(transport_, cut_);  // refuses options
  }

  void forward(const OptionsObject* options, const nb::args& objects) {
    const Arrays a("parallel_attention", {"q", "k", "v", "out", "lse"}, objects);
    const AttentionOptions o = options_or_default(options);
    a.compute([&]<class T>(Context& context) {
      dist::ContextParallel(transport_, cut_, context)
          .forward(view<const T>(a[0]), view<const T>(a[1]), view<const T>(a[2]), view<T>(a[3]), a[4], o);
    });
  }

  void backward(const OptionsObject* options, const nb::args& objects) {
    const Arrays a("parallel_attention's backward",
        {"q", "k", "v", "out", "lse", "dout", "dlse?", "dq?", "dk?", "dv?", "dbias?"}, objects);
    const AttentionOptions o = options_or_default(options);
    a.compute([&]<class T>(Context& context) {
      const AttentionGradients<T> gradients{.dq = a[7], .dk = a[8], .dv = a[9], .dbias = a[10], .dlse = a[6]};
      dist::ContextParallel(transport_, cut_, context)
          .backward(view<const T>(a[0]), view<const T>(a[1]), view<const T>(a[2]), view<const T>(a[3]), a[4],
              view<const T>(a[5]), gradients, o);
    });
  }

 private:
  template <class T> static View<T, 4> view(const Array& array) { return array; }

  PythonTransport transport_;
  dist::ContextParallelOptions cut_;
};

std::vector<std::string> texts_of_ranks(nb::object object, const std::string& text) {
  PythonTransport transport(std::move(object));
  const nb::gil_scoped_release unlocked;
  return dist::texts_of_ranks(transport, text);
}

std::vector<std::pair<Index, Index>> rows_of_rank(
    const std::string& layout, Index length, Index block, Index turns, int rank, int ranks) {
  std::vector<std::pair<Index, Index>> pairs;
  for (const dist::Rows& rows : dist::rows_of_rank(cut_of(layout, block, turns), length, rank, ranks)) {
    pairs.emplace_back(rows.begin, rows.end);
  }
  return pairs;
}

}  // namespace

}  // namespace qkv::python

NB_MODULE(_dist, m) {
  namespace nb = nanobind;
  using namespace qkv::python;
  nb::set_leak_warnings(false);  // what Python caches lives as long as the interpreter
  m.doc() = "Attention over several ranks: the functions that qkv/torch/parallel.py calls.";
  use_context();
  nb::class_<ContextParallel>(m, "ContextParallel")
      .def(nb::init<nb::object, const std::string&, const std::string&, qkv::Index, qkv::Index, qkv::Index>(),
          nb::arg("transport"), nb::arg("layout"), nb::arg("method"), nb::arg("block"), nb::arg("turns"),
          nb::arg("chunk"))
      .def("forward", &ContextParallel::forward, nb::arg("options").none(), nb::arg("arrays"))
      .def("backward", &ContextParallel::backward, nb::arg("options").none(), nb::arg("arrays"));
  m.def("texts_of_ranks", &texts_of_ranks, nb::arg("transport"), nb::arg("text"));
  m.def("rows_of_rank", &rows_of_rank, nb::arg("layout"), nb::arg("length"), nb::arg("block"), nb::arg("turns"),
      nb::arg("rank"), nb::arg("ranks"));
}
