#include "dist/compute.h"

#include "attention/backward/carried_backward.h"
#include "attention/forward/carried_forward.h"

namespace qkv::inline v0::dist {
namespace {

template <class T> KeyChunk chunk_of(const ArrivedKeys& keys) {
  return {keys.k.as<const T, 4>(), keys.v.as<const T, 4>(), keys.begin};
}
KeySizes sizes_of(const AllKeys& keys) { return {keys.heads, keys.length, keys.v_head_dim}; }

}  // namespace

void compute_forward(const Array& q, const Array& k, const Array& v, const Array& out, const Array& lse,
    const AttentionOptions& options, Context& context) {
  with_type(q.type, [&]<class T>(T) {
    const AttentionOutputs<T> outputs{.out = out.as<T, 4>(), .lse = lse.as<Accumulator<T>, 3>()};
    attention_forward(q.as<const T, 4>(), k.as<const T, 4>(), v.as<const T, 4>(), outputs, options, context);
  });
}

void compute_backward(const Array& q, const Array& k, const Array& v, const Array& out, const Array& lse,
    const Array& dout, const Gradients& gradients, const AttentionOptions& options, Context& context) {
  with_type(q.type, [&]<class T>(T) {
    attention_backward(q.as<const T, 4>(), k.as<const T, 4>(), v.as<const T, 4>(), out.as<const T, 4>(),
        lse.as<const Accumulator<T>, 3>(), dout.as<const T, 4>(), gradients.as<T>(), options, context);
  });
}

bool takes_chunks(bool backward, const Array& q, const AllKeys& keys, Index queries, const AttentionOptions& options,
    Context& context) {
  return with_type(q.type, [&]<class T>(T) {
    const View<const T, 4> view = q.as<const T, 4>();
    return backward ? carries_backward(view, sizes_of(keys), queries, options, context)
                    : carries_forward(view, sizes_of(keys), queries, options, context);
  });
}

Index chunk_step(Type type, Index head_dim, Index v_head_dim, const AttentionOptions& options, const Context& context) {
  return with_type(
      type, [&]<class T>(T) { return carried_step(stored_as<T>(), head_dim, v_head_dim, options, context); });
}

bool needs_maxima(const Array& lse) {
  return lse.type == Type::kF64 ? lse_is_coarse(lse.as<const double, 3>()) : lse_is_coarse(lse.as<const float, 3>());
}

ForwardPiece forward_piece(bool many, const Array& q, const AllKeys& keys, const Array& out, const Array& lse,
    const AttentionOptions& options, Context& context) {
  if (!many) {
    const auto add = [=, &context](
                         const ArrivedKeys& all) { compute_forward(q, all.k, all.v, out, lse, options, context); };
    return {add, [] { return false; }};
  }
  return with_type(q.type, [&]<class T>(T) {
    const auto carried = std::make_shared<CarriedForward>(
        q.as<const T, 4>(), sizes_of(keys), out.as<T, 4>(), lse.as<Accumulator<T>, 3>(), options, context);
    return ForwardPiece{[carried](const ArrivedKeys& some) { carried->add(chunk_of<T>(some)); },
        [carried] { return carried->finish(); }};
  });
}

BackwardPiece backward_piece(bool many, const Array& q, const AllKeys& keys, const Array& out, const Array& lse,
    const Array& dout, const Gradients& wanted, const AttentionOptions& options, Context& context) {
  if (!many) {
    const auto add = [=, &context](const ArrivedKeys& all, const Array& dk, const Array& dv, const Gradients& shared) {
      const Buffer own_dk(dk.type, dk.sizes), own_dv(dv.type, dv.sizes);
      Gradients g = shared;
      g.dq = wanted.dq, g.dlse = wanted.dlse, g.accumulate = wanted.accumulate;
      if (!dk.is_null()) g.dk_sums = own_dk.view;
      if (!dv.is_null()) g.dv_sums = own_dv.view;
      compute_backward(q, all.k, all.v, out, lse, dout, g, options, context);
      write(dk, own_dk.view, true);
      write(dv, own_dv.view, true);
    };
    return {{}, {}, add};
  }
  return with_type(q.type, [&]<class T>(T) {
    using Sum = Accumulator<T>;
    const BackwardInputs inputs{out.as<const T, 4>(), lse.as<const Sum, 3>(), dout.as<const T, 4>()};
    const auto carried = std::make_shared<CarriedBackward>(
        q.as<const T, 4>(), sizes_of(keys), inputs, detail::any(wanted.as<T>()), options, context);
    return BackwardPiece{[carried](const ArrivedKeys& some) { carried->add_maxima(chunk_of<T>(some)); },
        [carried] { carried->end_maxima(); },
        [carried](const ArrivedKeys& some, const Array& dk, const Array& dv, const Gradients& shared) {
          carried->add(chunk_of<T>(some), dk.as<Sum, 4>(), dv.as<Sum, 4>(), detail::any(shared.as<T>()));
        }};
  });
}

}  // namespace qkv::inline v0::dist
