// A case of linear attention in memory: inputs in the case's layout, options for the library and for the reference,
// results.
#pragma once

#include "linear/linear_case.h"
#include "support/random.h"

namespace qkv::test {

/// The reference's inputs, in the type N of its arithmetic.
template <class N> struct LinearReferenceInput {
  Tensor<N> q, k, v, dout, features, log_decay, channels, beta, kv, z, dkv, dz;
  reference::LinearOptions<N> options;

  auto forward() const { return reference::linear_attention_recurrent<N>(q, k, v, options); }
  auto quadratic() const { return reference::linear_attention_quadratic<N>(q, k, v, options); }
  auto backward() const {
    const View<const N, 4> dkv_view = dkv.data() == nullptr ? View<const N, 4>() : View<const N, 4>(dkv);
    const View<const N, 3> dz_view = dz.data() == nullptr ? View<const N, 3>() : View<const N, 3>(dz);
    return reference::linear_attention_backward<N>(q, k, v, dout, dkv_view, dz_view, options);
  }
};

template <class T> struct LinearProblem {
  LinearCase c;
  Triple<T> qkv;
  Stored<T> dout;
  Tensor<T> features, log_decay, channels, beta, kv, z, dkv, dz;
  LinearAttentionOptions<T> options;

  View<T, 4> q() const { return qkv.views[0]; }
  View<T, 4> k() const { return qkv.views[1]; }
  View<T, 4> v() const { return qkv.views[2]; }

  explicit LinearProblem(const LinearCase& linear_case)
      : c(linear_case),
        qkv({{{c.batch, c.num_heads / c.value_group, c.q_len, c.head_dim},
                {c.batch, c.num_kv_heads / c.value_group, c.kv_len, c.head_dim},
                {c.batch, c.num_kv_heads, c.kv_len, c.v_head_dim}}},
            c.layout),
        dout({c.batch, c.num_heads, c.q_len, c.v_head_dim}, c.layout) {
    Random random(c.seed + 5);
    // The delta rule is stable where beta |phi(k)|^2 < 2; elu + 1 makes no number larger than 1 + |k|.
    const double width = static_cast<double>(c.features());
    const double key_size = c.delta() ? 1.5 / std::sqrt(width) : 1.0, largest = 1 + key_size;
    const double beta_size = c.map == FeatureMap::kEluPlusOne ? 2 / (width * largest * largest) : 0.5;
    // A sum of weights of either sign may be arbitrarily near 0, and a quotient by it arbitrarily wrong.
    const bool positive = c.normalized && (c.map == FeatureMap::kIdentity || c.map == FeatureMap::kUnit);
    fill(q(), random, 1.0, positive);
    fill(k(), random, key_size, positive);
    fill(v(), random, 1.0, false);
    fill(dout.view, random, 1.0, false);
    options.feature_map = c.map;
    options.causal = c.causal();
    options.normalized = c.normalized;
    options.form = c.recurrent ? LinearForm::kRecurrent : LinearForm::kChunked;
    if (c.scaled) options.scale = c.map == FeatureMap::kSoftmax ? 0.3 : -0.7;
    if (c.map == FeatureMap::kSoftmax) {
      features = Tensor<T>({c.features(), c.head_dim});
      random_features(c.seed, View<T, 2>(features));
      options.features = features;
    }
    if (c.decays()) make_decay(random);
    if (c.delta()) {
      beta = Tensor<T>({c.batch, c.num_kv_heads, c.kv_len});
      for (T& x : beta.span()) x = static_cast<T>(beta_size * random.unit());
      options.beta = beta;
    }
    if (!c.state) return;
    kv = Tensor<T>({c.batch, c.num_kv_heads, c.features(), c.v_head_dim});
    dkv = Tensor<T>(kv.sizes());
    for (Tensor<T>* each : {&kv, &dkv}) {
      for (T& x : each->span()) x = static_cast<T>(random.symmetric());
    }
    options.initial.kv = kv;
    if (!c.normalized) return;
    z = Tensor<T>({c.batch, c.num_kv_heads, c.features()});
    dz = Tensor<T>(z.sizes());
    for (T& x : z.span()) x = static_cast<T>(1 + random.unit());
    for (T& x : dz.span()) x = static_cast<T>(random.symmetric());
    options.initial.z = z;
  }

  template <class N> LinearReferenceInput<N> reference_input() const {
    LinearReferenceInput<N> in{copy_as<N>(q()), copy_as<N>(k()), copy_as<N>(v()), copy_as<N>(dout.view),
        converted<N>(features), converted<N>(log_decay), converted<N>(channels), converted<N>(beta), converted<N>(kv),
        converted<N>(z), converted<N>(dkv), converted<N>(dz), {}};
    auto& o = in.options;
    o.map = c.map, o.causal = c.causal(), o.normalized = c.normalized, o.scale = options.scale;
    o.smallest = std::numeric_limits<T>::min();
    if (features.data() != nullptr) o.features = in.features;
    if (log_decay.data() != nullptr) o.log_decay = in.log_decay;
    if (channels.data() != nullptr) o.channels = in.channels;
    if (beta.data() != nullptr) o.beta = in.beta;
    if (kv.data() != nullptr) o.kv = in.kv;
    if (z.data() != nullptr) o.z = in.z;
    return in;
  }

 private:
  void make_decay(Random& random) {
    const bool of_heads = c.order == Order::kCausalHeadDecay || c.order == Order::kHeadChannels;
    std::vector<Index> sizes{of_heads ? 1 : c.batch, c.num_kv_heads, of_heads ? 1 : c.kv_len};
    if (c.channels()) sizes.push_back(c.features());
    Tensor<T>& made = c.channels() ? channels : log_decay;
    made = Tensor<T>(sizes);
    for (T& x : made.span()) {
      x = static_cast<T>(-0.3 * random.unit());
      if (!c.forgets()) continue;
      const Index kind = random.below(12);  // sometimes everything, or nearly so, is forgotten
      if (kind == 0) x = -std::numeric_limits<T>::infinity();
      if (kind == 1) x = -40;
      if (kind == 2) x = 0;
      if (c.channels() && kind > 6) x = -20;
    }
    if (c.channels()) {
      options.log_decay_channels = channels;
    } else {
      options.log_decay = log_decay;
    }
  }

  static void fill(const View<T, 4>& view, Random& random, double size, bool positive) {
    for_each_index(view.sizes(), [&](Index b, Index h, Index t, Index n) {
      view(b, h, t, n) = static_cast<T>(size * (positive ? 0.1 + random.unit() : random.symmetric()));
    });
  }
};

/// The library's results, q-like outputs in the case's layout between sentinels.
template <class T> struct LinearResult {
  Stored<T> out;
  Tensor<T> normalizer, kv, z, dlog_decay, dchannels, dbeta, dkv, dz;
  Triple<T> gradients;

  explicit LinearResult(const LinearProblem<T>& p)
      : out({p.c.batch, p.c.num_heads, p.c.q_len, p.c.v_head_dim}, p.c.layout),
        gradients({p.q().sizes(), p.k().sizes(), p.v().sizes()}, p.c.layout) {
    kv = Tensor<T>({p.c.batch, p.c.num_kv_heads, p.c.features(), p.c.v_head_dim});
    dkv = Tensor<T>(kv.sizes());
    if (p.c.normalized) {
      normalizer = Tensor<T>({p.c.batch, p.c.num_heads, p.c.q_len});
      z = Tensor<T>({p.c.batch, p.c.num_kv_heads, p.c.features()});
      dz = Tensor<T>(z.sizes());
    }
    if (p.c.decays() && !p.c.channels()) dlog_decay = Tensor<T>(p.log_decay.sizes());
    if (p.c.channels()) dchannels = Tensor<T>(p.channels.sizes());
    if (p.c.delta()) dbeta = Tensor<T>(p.beta.sizes());
    for (Tensor<T>* each : {&normalizer, &kv, &z, &dlog_decay, &dchannels, &dbeta, &dkv, &dz}) {
      if (each->data() != nullptr) std::fill_n(each->data(), each->count(), kQuietNan<T>);
    }
  }

  template <int Rank> static View<T, Rank> view_or_null(const Tensor<T>& tensor) {
    return tensor.data() == nullptr ? View<T, Rank>() : const_cast<Tensor<T>&>(tensor).template view<Rank>();
  }

  void forward(const LinearProblem<T>& p, Context& context) {
    linear_attention_forward(p.q(), p.k(), p.v(), out.view, view_or_null<3>(normalizer), p.options,
        {.kv = kv, .z = view_or_null<3>(z)}, context);
  }
  /// Needs forward() before.
  void backward(const LinearProblem<T>& p, Context& context, bool accumulate = false) {
    LinearAttentionGradients<T> wanted;
    wanted.dq = gradients.views[0], wanted.dk = gradients.views[1], wanted.dv = gradients.views[2];
    wanted.dlog_decay = view_or_null<3>(dlog_decay), wanted.dbeta = view_or_null<3>(dbeta);
    wanted.dlog_decay_channels = view_or_null<4>(dchannels);
    wanted.dinitial = {.kv = dkv, .z = view_or_null<3>(dz)};
    if (p.c.state) wanted.dfinal = {.kv = p.dkv, .z = view_or_null<3>(p.dz)};
    wanted.accumulate = accumulate;
    linear_attention_backward(
        p.q(), p.k(), p.v(), out.view, view_or_null<3>(normalizer), p.dout.view, wanted, p.options, context);
  }
  void run(const LinearProblem<T>& p, Context& context) {
    forward(p, context);
    backward(p, context);
  }
  bool sentinels_intact() const { return out.storage.sentinels_intact() && gradients.sentinels_intact(); }

  /// Every output, contiguous, with its name.
  std::vector<std::pair<const char*, Tensor<T>>> outputs() const {
    std::vector<std::pair<const char*, Tensor<T>>> all;
    all.emplace_back("out", copy_as<T>(out.view));
    const auto add = [&](const char* name, const Tensor<T>& tensor) {
      if (tensor.data() != nullptr) all.emplace_back(name, tensor.clone());
    };
    add("normalizer", normalizer), add("kv", kv), add("z", z);
    const char* const names[] = {"dq", "dk", "dv"};
    for (std::size_t n = 0; n < 3; ++n) all.emplace_back(names[n], copy_as<T>(gradients.views[n]));
    add("dlog_decay", dlog_decay), add("dchannels", dchannels), add("dbeta", dbeta), add("dkv", dkv), add("dz", dz);
    return all;
  }
};

}  // namespace qkv::test
