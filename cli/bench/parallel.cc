#include "bench/parallel.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <cstring>
#include <sstream>

#include "core/random.h"
#include "qkv/attention.h"
#include "qkv/dist/reduce.h"
#include "ranks/methods.h"
#include "support/json.h"
#include "support/option_group.h"
#include "support/text.h"

namespace qkv::cli {
namespace {

using Clock = std::chrono::steady_clock;

double ms_since(Clock::time_point start) { return std::chrono::duration<double, std::milli>(Clock::now() - start).count(); }

/// Passes everything on, counts bytes, and remembers the messages: they can be sent again without the work between them.
class Counting final : public dist::Transport {
 public:
  explicit Counting(dist::Transport& to) : to_(to) {}
  int rank() const override { return to_.rank(); }
  int size() const override { return to_.size(); }
  dist::Ticket send(int to, std::span<const std::byte> bytes) override {
    sent_.emplace_back(to, bytes.size());
    return to_.send(to, bytes);
  }
  dist::Ticket receive(int from, std::span<std::byte> bytes) override {
    received_.emplace_back(from, bytes.size());
    return to_.receive(from, bytes);
  }
  bool poll(dist::Ticket ticket) override { return to_.poll(ticket); }

  void clear() {
    sent_.clear();
    received_.clear();
  }
  double bytes_sent() const {
    double sum = 0;
    for (const auto& [peer, bytes] : sent_) sum += peer == rank() ? 0 : static_cast<double>(bytes);
    return sum;
  }
  /// The same messages at once.
  void again() const {
    std::size_t longest = 0;
    for (const auto& [peer, bytes] : sent_) longest = std::max(longest, bytes);
    const std::vector<std::byte> out(longest);
    std::vector<std::vector<std::byte>> in;
    std::vector<dist::Ticket> tickets;
    for (const auto& [peer, bytes] : received_) tickets.push_back(to_.receive(peer, in.emplace_back(bytes)));
    for (const auto& [peer, bytes] : sent_) tickets.push_back(to_.send(peer, std::span(out).first(bytes)));
    dist::wait(to_, tickets);
  }

 private:
  dist::Transport& to_;
  std::vector<std::pair<int, std::size_t>> sent_, received_;  // peer, bytes
};

/// q, dout, out, dq [1, H, T, D], k, v, dk, dv [1, Hkv, T, D], lse [1, H, T]: all of it, or one rank's rows.
struct Problem {
  Tensor<float> q, k, v, dout, out{}, lse{}, dq{}, dk{}, dv{};

  void size_results() {
    out = Tensor<float>(q.sizes());
    lse = Tensor<float>({q.size(0), q.size(1), q.size(2)});
    dq = Tensor<float>(q.sizes());
    dk = Tensor<float>(k.sizes());
    dv = Tensor<float>(v.sizes());
  }
  AttentionGradients<float> gradients() { return {.dq = dq, .dk = dk, .dv = dv}; }
};

Tensor<float> drawn_heads(Index heads, Index length, Index width, std::uint32_t stream) {
  Tensor<float> x({1, heads, length, width});
  Random random(0, stream);
  for (float& value : x.span()) value = random.uniform_f32() * 2 - 1;
  return x;
}

/// x [1, H, T, ...], the rows of one rank.
Tensor<float> rows_of(const Tensor<float>& x, const std::vector<dist::Rows>& rows) {
  std::vector<Index> sizes = x.sizes();
  const Index width = x.rank() == 4 ? sizes[3] : 1, length = sizes[2];
  sizes[2] = 0;
  for (const dist::Rows& some : rows) sizes[2] += some.count();
  Tensor<float> share(sizes);
  float* to = share.data();
  for (Index head = 0; head < sizes[1]; ++head) {
    for (const dist::Rows& some : rows)
      to = std::copy_n(x.data() + (head * length + some.begin) * width, some.count() * width, to);
  }
  return share;
}

double median(std::vector<double> values) {
  std::ranges::sort(values);
  return values[values.size() / 2];
}

/// The largest of the ranks' numbers, on every rank.
double largest(dist::Transport& transport, double mine) {
  const std::string text = dist::decide(transport, fmt::format("{:.17g}", mine), [](const std::vector<std::string>& texts) {
    double most = 0;
    for (const std::string& one : texts) most = std::max(most, std::stod(one));
    return fmt::format("{:.17g}", most);
  });
  return std::stod(text);
}

struct Compared {
  std::string name;
  bool equal = true;
  double difference = 0;  ///< largest, as a fraction of the largest magnitude
};

/// The first rank has the whole results; each holds its rows against them.
Compared compare(const Ranks& ranks, const std::string& name, const Tensor<float>& whole, const Tensor<float>& mine,
                 const std::vector<dist::Rows>& rows) {
  Tensor<float> all(whole.sizes());
  dist::Transport& transport = ranks.transport();
  if (ranks.first()) {
    std::ranges::copy(whole.span(), all.data());
    std::vector<dist::Ticket> tickets;
    for (int rank = 1; rank < ranks.size(); ++rank) tickets.push_back(transport.send(rank, std::as_bytes(whole.span())));
    dist::wait(transport, tickets);
  } else {
    dist::wait(transport, transport.receive(0, std::as_writable_bytes(all.span())));
  }
  const Tensor<float> wanted = rows_of(all, rows);
  Compared result{name, std::memcmp(wanted.data(), mine.data(), wanted.span().size_bytes()) == 0, 0};
  double magnitude = 0;
  for (const float value : all.span()) magnitude = std::max(magnitude, std::abs(static_cast<double>(value)));
  for (Index i = 0; i < wanted.count(); ++i)
    result.difference =
        std::max(result.difference, std::abs(static_cast<double>(wanted.data()[i]) - static_cast<double>(mine.data()[i])));
  result.difference = largest(transport, magnitude > 0 ? result.difference / magnitude : 0);
  result.equal = largest(transport, result.equal ? 0 : 1) == 0;
  return result;
}

struct MeasuredRanks {
  double one_ms = 0, ms = 0, messages_ms = 0, bytes = 0;
  std::vector<Compared> compared;
};

Json json_of(const ParallelBenchOptions& o, const Ranks& ranks, const Context& context, const MeasuredRanks& m) {
  Json tensors;
  bool equal = true;
  for (const Compared& one : m.compared) {
    tensors[one.name] = {{"bits", one.equal ? "equal" : "bounded"}, {"largest_difference", one.difference}};
    equal = equal && one.equal;
  }
  const double ideal = m.one_ms / ranks.size();
  const double exposed = std::clamp(m.ms - ideal, 0.0, m.messages_ms);
  return {{"parallel", o.parallel.method},
          {"layout", o.cut.layout.empty() ? "zig-zag" : o.cut.layout},
          {"turns", o.cut.turns},
          {"chunk", o.cut.chunk},
          {"ranks", ranks.size()},
          {"threads", context.threads()},
          {"isa", isa_name(context.isa())},
          {"tokens_per_rank", o.tokens},
          {"heads", o.heads},
          {"kv_heads", o.kv_heads},
          {"head_dim", o.head_dim},
          {"ms", m.ms},
          {"one_rank_ms", m.one_ms},
          {"ideal_ms", ideal},
          {"of_ideal", ideal / m.ms},
          {"bytes_sent", m.bytes},
          {"messages_ms", m.messages_ms},
          {"hidden", m.messages_ms > 0 ? 1 - exposed / m.messages_ms : 1},
          {"bits", equal ? "equal" : "bounded"},
          {"tensors", tensors}};
}

void print_measured(const Json& j) {
  const auto number = [&](const char* name) { return j[name].get<double>(); };
  print_line(fmt::format(
      "{}  {} over {} ranks of {} thread{}, {}; causal, {}, {} tokens a rank, {} heads on {}, D {}, f32, forward and backward",
      bold("qkv bench"), j["parallel"].get<std::string>(), j["ranks"].get<int>(), j["threads"].get<int>(),
      j["threads"] == 1 ? "" : "s", j["isa"].get<std::string>(), j["layout"].get<std::string>(),
      j["tokens_per_rank"].get<Index>(), j["heads"].get<Index>(), j["kv_heads"].get<Index>(), j["head_dim"].get<Index>()));
  print_line();
  print_line(fmt::format("time          {:.1f} ms, {:.0f} % of the ideal {:.1f} ms (one rank: {:.1f} ms)", number("ms"),
                         100 * number("of_ideal"), number("ideal_ms"), number("one_rank_ms")));
  print_line(
      fmt::format("bytes sent    {} by each rank at most; alone they take {:.1f} ms, of which {:.0f} % are hidden behind work",
                  bytes_text(number("bytes_sent")), number("messages_ms"), 100 * number("hidden")));
  std::string tensors;
  for (const auto& [name, one] : j["tensors"].items()) {
    tensors += (tensors.empty() ? "" : ", ") + name + " " + one["bits"].get<std::string>();
    if (one["bits"] != "equal") tensors += fmt::format(" ({:.1e})", one["largest_difference"].get<double>());
  }
  print_line(fmt::format("bits          {} to one rank's: {}", j["bits"].get<std::string>(), tensors));
}

}  // namespace

void add_parallel_bench_options(CLI::App& app, ParallelBenchOptions& options) {
  add_parallel_options(app, options.parallel, kSequenceMethods);
  const OptionGroup group(app, "Several ranks (mpirun -n N qkv ...)");
  add_cut_options(app, group, options.cut);
  group.integer("--tokens", options.tokens, "Tokens of each rank (default 2048)", 1);
  group.integer("--heads", options.heads, "Query heads (default 8)", 1);
  group.integer("--kv-heads", options.kv_heads, "Key/value heads (default: as many)", 1);
  group.integer("--dim", options.head_dim, "Width of a head (default 64)", 1);
  group.integer("--runs", options.runs, "Runs, of which the median counts (default 5)", 1);
  for (const char* name : {"--tokens", "--heads", "--kv-heads", "--dim", "--runs"})
    app.get_option(name)->needs(app.get_option("--parallel"));
}

void bench_on_ranks(const ParallelBenchOptions& given, bool json, const Ranks& ranks) {
  ParallelBenchOptions options = given;
  if (options.kv_heads == 0) options.kv_heads = options.heads;
  const Index length = options.tokens * ranks.size();
  ranks.agree({{"problem", fmt::format("{} {} {} {} {}", options.tokens, options.heads, options.kv_heads, options.head_dim,
                                       options.runs)}});
  Counting transport(ranks.transport());
  Context context(ranks.context());
  const AttentionOptions attention{.mask = Mask::causal()};
  dist::ContextParallelOptions cut = parse_cut(options.cut, options.parallel.method, true);
  cut.mask = attention.mask;
  dist::ContextParallel parallel(transport, cut, context);
  const std::vector<dist::Rows> rows = parallel.rows(length);

  Problem whole{.q = drawn_heads(options.heads, length, options.head_dim, 0),
                .k = drawn_heads(options.kv_heads, length, options.head_dim, 1),
                .v = drawn_heads(options.kv_heads, length, options.head_dim, 2),
                .dout = drawn_heads(options.heads, length, options.head_dim, 3)};
  whole.size_results();
  Problem mine{
      .q = rows_of(whole.q, rows), .k = rows_of(whole.k, rows), .v = rows_of(whole.v, rows), .dout = rows_of(whole.dout, rows)};
  mine.size_results();

  MeasuredRanks measured;
  std::vector<double> one, all, messages;
  for (int run = 0; run < options.runs; ++run) {
    if (ranks.first()) {
      const auto start = Clock::now();
      attention_forward(whole.q, whole.k, whole.v, {.out = whole.out, .lse = whole.lse}, attention, context);
      attention_backward(whole.q, whole.k, whole.v, whole.out, whole.lse, whole.dout, whole.gradients(), attention, context);
      one.push_back(ms_since(start));
    }
    ranks.barrier();
    transport.clear();
    const auto start = Clock::now();
    parallel.forward(mine.q, mine.k, mine.v, mine.out, mine.lse, attention);
    parallel.backward(mine.q, mine.k, mine.v, mine.out, mine.lse, mine.dout, mine.gradients(), attention);
    all.push_back(largest(ranks.transport(), ms_since(start)));
    ranks.barrier();
    const auto again = Clock::now();
    transport.again();
    messages.push_back(largest(ranks.transport(), ms_since(again)));
  }
  measured.one_ms = largest(ranks.transport(), one.empty() ? 0 : median(one));
  measured.ms = median(all);
  measured.messages_ms = median(messages);
  measured.bytes = largest(ranks.transport(), transport.bytes_sent());
  measured.compared = {compare(ranks, "out", whole.out, mine.out, rows), compare(ranks, "lse", whole.lse, mine.lse, rows),
                       compare(ranks, "dq", whole.dq, mine.dq, rows), compare(ranks, "dk", whole.dk, mine.dk, rows),
                       compare(ranks, "dv", whole.dv, mine.dv, rows)};
  if (!ranks.first()) return;
  const Json document = json_of(options, ranks, context, measured);
  if (json) {
    print_json(document);
  } else {
    print_measured(document);
  }
}

}  // namespace qkv::cli
