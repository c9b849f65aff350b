// Projections: which matrix makes q, k, v, and how it is applied.
#include "judge/entry_edits.h"

namespace qkv::judge {
namespace {

/// q, k, v made by the parameters of others: exchanged("kqv") makes q from W_k, k from W_q.
Edit exchanged(std::string order) {
  return after("parameters", [order](Work& work) {
    const Arrays old = work.arrays;
    for (std::size_t i = 0; i < 3; ++i) {
      // The i-th block of a merged projection is taken for order[i].
      const std::string to(1, order[i]), from(1, "qkv"[i]);
      for (const char* kind : {"W_", "b_"}) {
        const Array& taken = old.at(kind + from);
        need(taken.shape == old.at(kind + to).shape);
        work[kind + to] = taken;
      }
    }
  });
}

/// `to` made by the parameters of `from`.
Edit uses(char to, char from) {
  return after("parameters", [to, from](Work& work) {
    for (const std::string kind : {"W_", "b_"}) {
      const Array taken = work.at(kind + from);
      need(taken.shape == work.at(kind + to).shape);
      work[kind + to] = taken;
    }
  });
}

Edit without_bias(std::vector<std::string> names) {
  return after("parameters", [names = std::move(names)](Work& work) {
    for (const std::string& name : names) work[name] = Array();
  });
}

Edit transposed(std::vector<std::string> names) {
  return after("parameters", [names = std::move(names)](Work& work) {
    for (const std::string& name : names) {
      const Array& weight = work.at(name);
      need(weight.rank() == 2 && weight.size(0) == weight.size(1));
      work[name] = transpose(weight);
    }
  });
}

Edit unprojected(const char* name, const char* from) {
  return after("project", [name, from](Work& work) {
    need(work.at(name).size(-1) == work.at(from).size(-1));
    work[name] = work.at(from);
  });
}

Entry order(std::string_view id, std::string_view says, const char* order) {
  return Entry(id, says,
               "Feed a projection whose three blocks you can tell apart, and look which block each of q, k and v comes from.",
               "projection", {"projection"}, exchanged(order))
      .in("order");
}

}  // namespace

std::vector<Entry> projection_entries() {
  return {
      order("order-kqv", "Queries and keys are exchanged: k is made by the query projection and q by the key projection.",
            "kqv"),
      order("order-vkq", "Queries and values are exchanged: the blocks of the projection are read in the order v, k, q.",
            "vkq"),
      order("order-qvk", "Keys and values are exchanged: the blocks of the projection are read in the order q, v, k.", "qvk"),
      order("order-kvq", "The blocks of the projection are read in the order k, v, q; they are q, k, v.", "kvq"),
      order("order-vqk", "The blocks of the projection are read in the order v, q, k; they are q, k, v.", "vqk"),
      Entry("k-uses-q-weights", "The keys are made by the query projection; the key projection is never used.",
            "Which parameters get a gradient?", "projection", {"projection"}, uses('k', 'q')),
      Entry("v-uses-k-weights", "The values are made by the key projection; the value projection is never used.",
            "Which parameters get a gradient?", "projection", {"projection"}, uses('v', 'k')),
      Entry("v-uses-q-weights", "The values are made by the query projection; the value projection is never used.",
            "Which parameters get a gradient?", "projection", {"projection"}, uses('v', 'q')),
      Entry("q-uses-k-weights", "The queries are made by the key projection; the query projection is never used.",
            "Which parameters get a gradient?", "projection", {"projection"}, uses('q', 'k')),
      Entry("no-qkv-bias", "The biases of the query, key and value projections are not added.",
            "A linear layer is x W + b. Set W to zero and look at q.", "projection", {"biases"},
            without_bias({"b_q", "b_k", "b_v"})),
      Entry("no-q-bias", "The bias of the query projection is not added.",
            "A linear layer is x W + b. Set W to zero and look at q.", "projection", {"biases"}, without_bias({"b_q"})),
      Entry("no-v-bias", "The bias of the value projection is not added.",
            "A linear layer is x W + b. Set W to zero and look at v.", "projection", {"biases"}, without_bias({"b_v"})),
      Entry("weight-not-transposed",
            "The projection matrices are applied the wrong way round (x W where x W^T is meant, or the reverse).",
            "nn.Linear keeps its weight as [out, in]. A square matrix hides the difference; try one that is not.", "projection",
            {"projection"}, transposed({"W_q", "W_k", "W_v"})),
      Entry("v-unprojected", "The values are the input itself: the value projection is not applied.",
            "Set the value projection to zero. What should the output be?", "projection", {"projection"},
            unprojected("v", "memory")),
      Entry("q-unprojected", "The queries are the input itself: the query projection is not applied.",
            "Set the query projection to zero. What should the weights be?", "projection", {"projection"},
            unprojected("q", "x")),
      Entry("k-unprojected", "The keys are the input itself: the key projection is not applied.",
            "Set the key projection to zero. What should the weights be?", "projection", {"projection"},
            unprojected("k", "memory")),
      Entry("memory-ignored", "Keys and values come from x; the other sequence is never read.",
            "Change the other sequence. Does the output change?", "projection", {"cross"},
            after("parameters", [](Work& work) { work["memory"] = work.at("x"); })),
      Entry("queries-from-memory", "Queries come from the other sequence and keys and values from x: the two are exchanged.",
            "How many rows has the output, and how many has x?", "projection", {"cross"},
            after("parameters", [](Work& work) { std::swap(work["x"], work["memory"]); })),
  };
}

}  // namespace qkv::judge
