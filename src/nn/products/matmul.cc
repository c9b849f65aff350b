// oneDNN behind matmul.h. Versions 2.6 and 3.x. oneDNN's own threads are kept out: while a product runs, its OpenMP is set to 1
// thread for the calling thread (a per-thread setting, restored afterwards). A primitive that two threads run at once needs a
// scratchpad per thread (oneDNN, "Primitive Attributes: managing scratchpad"), hence the argument sets.
#include "nn/products/matmul.h"

#include <dlfcn.h>

#include <mutex>
#include <oneapi/dnnl/dnnl.hpp>
#include <unordered_map>
#include <utility>
#include <vector>

#include "qkv/error.h"

namespace qkv::inline v0::nn {
namespace {

/// The OpenMP that this oneDNN was linked with, perhaps not the program's. Null functions when it uses none.
struct OpenMp {
  int (*get_max_threads)() = nullptr;
  void (*set_num_threads)(int) = nullptr;

  OpenMp() {
    Dl_info library{};
    if (dladdr(reinterpret_cast<void*>(&dnnl_version), &library) == 0) return;
    void* handle = dlopen(library.dli_fname, RTLD_LAZY | RTLD_NOLOAD);
    void* scope = handle != nullptr ? handle : RTLD_DEFAULT;  // linked statically: the program's own
    get_max_threads = reinterpret_cast<int (*)()>(dlsym(scope, "omp_get_max_threads"));
    set_num_threads = reinterpret_cast<void (*)(int)>(dlsym(scope, "omp_set_num_threads"));
    if (get_max_threads == nullptr) set_num_threads = nullptr;
  }
};

/// In its lifetime, oneDNN calls of this thread stay on this thread.
class OneThread {
 public:
  OneThread() {
    if (omp().set_num_threads == nullptr) return;
    before_ = omp().get_max_threads();
    if (before_ != 1) omp().set_num_threads(1);
  }
  ~OneThread() {
    if (before_ > 1) omp().set_num_threads(before_);
  }
  OneThread(const OneThread&) = delete;
  OneThread& operator=(const OneThread&) = delete;

 private:
  static const OpenMp& omp() {
    static const OpenMp found;
    return found;
  }
  int before_ = 1;
};

const dnnl::engine& cpu_engine() {
  static const dnnl::engine engine(dnnl::engine::kind::cpu, 0);
  return engine;
}

dnnl::matmul::primitive_desc describe(const MatmulShape& shape) {
  using dnnl::memory;
  constexpr auto f32 = memory::data_type::f32, bf16 = memory::data_type::bf16;
  const memory::desc a({shape.rows, shape.inner}, bf16, memory::dims{shape.a_row_stride, shape.a_column_stride});
  const memory::desc b({shape.inner, shape.columns}, bf16, memory::dims{shape.b_row_stride, shape.b_column_stride});
  const memory::desc c({shape.rows, shape.columns}, shape.accumulate ? f32 : bf16, memory::dims{shape.c_row_stride, 1});
  const memory::desc bias = shape.bias ? memory::desc({1, shape.columns}, f32, memory::dims{shape.columns, 1}) : memory::desc();
  dnnl::primitive_attr attributes;
  attributes.set_scratchpad_mode(dnnl::scratchpad_mode::user);
  if (shape.accumulate) {
    dnnl::post_ops sum;
    sum.append_sum(1.0F);
    attributes.set_post_ops(sum);
  }
#if DNNL_VERSION_MAJOR >= 3
  return {cpu_engine(), a, b, bias, c, attributes};
#else
  return {dnnl::matmul::desc(a, b, bias, c), attributes, cpu_engine()};
#endif
}

/// What one running call needs: memory objects to point at the caller's data, a stream, its own scratchpad.
struct Arguments {
  explicit Arguments(const dnnl::matmul::primitive_desc& description, bool with_bias)
      : stream(cpu_engine()),
        a(description.src_desc(), cpu_engine(), nullptr),
        b(description.weights_desc(), cpu_engine(), nullptr),
        c(description.dst_desc(), cpu_engine(), nullptr),
        scratchpad(description.scratchpad_desc(), cpu_engine()) {
    list = {{DNNL_ARG_SRC, a}, {DNNL_ARG_WEIGHTS, b}, {DNNL_ARG_DST, c}, {DNNL_ARG_SCRATCHPAD, scratchpad}};
    if (with_bias) {
      bias = dnnl::memory(description.bias_desc(), cpu_engine(), nullptr);
      list.emplace(DNNL_ARG_BIAS, bias);
    }
  }

  dnnl::stream stream;
  dnnl::memory a, b, c, scratchpad, bias;
  std::unordered_map<int, dnnl::memory> list;
};

struct HashShape {
  std::size_t operator()(const MatmulShape& shape) const {
    std::size_t hash = (shape.bias ? 2U : 0U) + (shape.accumulate ? 1U : 0U);
    for (Index value : {shape.rows, shape.columns, shape.inner, shape.a_row_stride, shape.a_column_stride, shape.b_row_stride,
                        shape.b_column_stride, shape.c_row_stride}) {
      hash = hash * 0x9E3779B97F4A7C15U + static_cast<std::size_t>(value);
      hash ^= hash >> 29;
    }
    return hash;
  }
};

}  // namespace

struct Matmul::Impl {
  explicit Impl(const MatmulShape& shape) : description(describe(shape)), primitive(description), with_bias(shape.bias) {}

  std::unique_ptr<Arguments> take() {
    {
      const std::lock_guard lock(mutex);
      if (!idle.empty()) {
        auto arguments = std::move(idle.back());
        idle.pop_back();
        return arguments;
      }
    }
    return std::make_unique<Arguments>(description, with_bias);
  }
  void give_back(std::unique_ptr<Arguments> arguments) {
    const std::lock_guard lock(mutex);
    idle.push_back(std::move(arguments));
  }

  dnnl::matmul::primitive_desc description;
  dnnl::matmul primitive;
  bool with_bias;
  std::mutex mutex;
  std::vector<std::unique_ptr<Arguments>> idle;
};

Matmul::Matmul(const MatmulShape& shape) {
  const OneThread guard;  // oneDNN chooses its blocking by the number of threads that it sees
  impl_ = std::make_unique<Impl>(shape);
}
Matmul::~Matmul() = default;

void Matmul::run(const BFloat16* a, const BFloat16* b, const float* bias, void* c) const {
  const OneThread guard;
  auto arguments = impl_->take();
  arguments->a.set_data_handle(const_cast<BFloat16*>(a));
  arguments->b.set_data_handle(const_cast<BFloat16*>(b));
  arguments->c.set_data_handle(c);
  if (bias != nullptr) arguments->bias.set_data_handle(const_cast<float*>(bias));
  impl_->primitive.execute(arguments->stream, arguments->list);
  arguments->stream.wait();
  impl_->give_back(std::move(arguments));
}

bool has_native_bf16_matmul() {
  static const bool native = [] {
    constexpr unsigned kWanted = dnnl_cpu_isa_avx512_core_bf16;  // instruction sets are bits: a superset has them all
    return (static_cast<unsigned>(dnnl_get_effective_cpu_isa()) & kWanted) == kWanted;
  }();
  return native;
}

std::shared_ptr<const Matmul> held_matmul(const MatmulShape& shape) {
  static std::mutex mutex;
  static std::unordered_map<MatmulShape, std::shared_ptr<const Matmul>, HashShape> held;
  {
    const std::lock_guard lock(mutex);
    const auto found = held.find(shape);
    if (found != held.end()) return found->second;
  }
  auto made = std::make_shared<const Matmul>(shape);  // outside the lock: takes up to milliseconds
  const std::lock_guard lock(mutex);
  if (held.size() >= kHeldMatmuls) held.clear();  // running calls hold their own pointers
  return held.emplace(shape, std::move(made)).first->second;
}

}  // namespace qkv::inline v0::nn
