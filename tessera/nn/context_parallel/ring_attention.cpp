// SPDX-License-Identifier: Apache-2.0
#include <utility>

#include <fmt/format.h>

#include "tessera/base/error.h"
#include "tessera/comm/world.h"
#include "tessera/nn/autograd.h"
#include "tessera/nn/context_parallel/attention.h"
#include "tessera/nn/context_parallel/context_parallel.h"
#include "tessera/ops/attention_block.h"
#include "tessera/tensor/span.h"

namespace tessera::nn {
namespace {

using namespace detail;

/// Messages of the ring: keys and values, and their gradients.
constexpr int kKeys = 0x7269, kKeyGradients = 0x726a;

/// What this rank's queries do with the keys of one rank: queries from `first_query` on see the
/// first `keys` of them.
struct Part {
  std::int64_t first_query = 0, keys = 0;
  ops::AttentionBlock block;
};

class Ring {
 public:
  Ring(const ops::AttentionArgs& args, const StepContext& context, std::int64_t tokens)
      : args_(args), context_(context), group_(*context.context_parallel->group), tokens_(tokens) {
    TESSERA_ASSERT(args.query_offset == 0 && tokens % 2 == 0);
  }
  [[nodiscard]] int ranks() const { return group_.size(); }

  /// With the keys that are here after so many of them were received.
  [[nodiscard]] Part part(int received) const {
    const int source = (group_.index - received + ranks()) % ranks();
    Part out{0, tokens_, {}};
    // A rank's early chunk comes before all late ones, and chunks of a higher rank lie between
    // those of a lower.
    if (args_.causal && source < group_.index) out.keys = tokens_ / 2;
    if (args_.causal && source > group_.index) out.first_query = tokens_ / 2;
    ops::AttentionBlock& block = out.block;
    block.causal = args_.causal && source == group_.index;
    block.scale = args_.scale;
    block.dropout = args_.dropout;
    block.first_head = args_.first_head;
    block.tokens = tokens_ * ranks();
    block.queries = runs_of(group_.index);
    block.keys = runs_of(source);
    if (out.first_query > 0) block.queries.erase(block.queries.begin());
    if (out.keys < tokens_) block.keys.pop_back();
    if (args_.mask_BS.defined()) {
      std::vector<at::Tensor> columns;
      for (const ops::Run& run : block.keys)
        columns.push_back(args_.mask_BS.narrow(1, run.begin, run.end - run.begin));
      block.mask_BS = at::cat(columns, 1);
    }
    return out;
  }

  /// To the next rank; a copy travels, so that this one's is free at once.
  void send(const at::Tensor& x, int channel, const char* what) const {
    transport().send(neighbour(1), channel, span_of(x.contiguous()), site(what))->wait();
  }
  /// What the rank before sent.
  [[nodiscard]] at::Tensor receive(const at::Tensor& like, int channel, const char* what) const {
    at::Tensor out = at::empty(like.sizes(), like.options());
    transport().recv(neighbour(ranks() - 1), channel, span_of(out), site(what))->wait();
    return out;
  }

 private:
  [[nodiscard]] std::vector<ops::Run> runs_of(int rank) const {
    const std::int64_t size = tokens_ / 2;
    std::vector<ops::Run> out;
    for (const std::int64_t chunk : chunks_of(ContextMode::Ring, ranks(), rank))
      out.push_back({chunk * size, (chunk + 1) * size});
    return out;
  }
  [[nodiscard]] comm::Transport& transport() const {
    return context_.context_parallel->world->transport();
  }
  [[nodiscard]] int neighbour(int further) const {
    return group_.ranks[static_cast<std::size_t>((group_.index + further) % ranks())];
  }
  [[nodiscard]] comm::CallSite site(const char* what) const {
    return TESSERA_HERE(fmt::format("{} of {}", what, context_.block_name));
  }

  const ops::AttentionArgs& args_;
  const StepContext& context_;
  const comm::Group& group_;
  std::int64_t tokens_;
};

at::Tensor from(const at::Tensor& x_BHTK, std::int64_t first) {
  return x_BHTK.narrow(2, first, x_BHTK.size(2) - first);
}

ops::AttentionOut forward_around(const at::Tensor& q,
                                 const at::Tensor& k,
                                 const at::Tensor& v,
                                 const Ring& ring) {
  at::Tensor kv = at::stack({k, v});
  ops::AttentionOut sum;
  for (int step = 0; step < ring.ranks(); ++step) {
    const bool last = step + 1 == ring.ranks();
    if (!last) ring.send(kv, kKeys, "keys and values");
    const Part part = ring.part(step);
    const ops::AttentionOut out = ops::attention_block(from(q, part.first_query),
                                                       kv[0].narrow(2, 0, part.keys),
                                                       kv[1].narrow(2, 0, part.keys),
                                                       part.block);
    if (step == 0) {
      sum = {out.y_BHTK.to(at::kFloat), out.saved};
    } else {
      ops::merge_attention(out, part.first_query, sum);
    }
    if (!last) kv = ring.receive(kv, kKeys, "keys and values");
  }
  return {sum.y_BHTK.to(q.scalar_type()), sum.saved};
}

/// Gradients of a rank's keys follow them around the ring, and every rank adds its own.
ops::AttentionGrads backward_around(const at::Tensor& dy,
                                    const at::Tensor& q,
                                    const at::Tensor& k,
                                    const at::Tensor& v,
                                    const ops::AttentionOut& whole,
                                    const Ring& ring) {
  constexpr const char* kWhat = "gradients of keys and values";
  at::Tensor kv = at::stack({k, v});
  at::Tensor dkv = at::zeros(kv.sizes(), kv.options().dtype(at::kFloat));
  const at::Tensor dq = at::zeros(q.sizes(), q.options().dtype(at::kFloat));
  for (int step = 0; step < ring.ranks(); ++step) {
    const bool last = step + 1 == ring.ranks();
    if (!last) ring.send(kv, kKeys, "keys and values");
    const Part part = ring.part(step);
    const ops::AttentionGrads d = ops::attention_block_backward(
        from(dy, part.first_query),
        from(q, part.first_query),
        kv[0].narrow(2, 0, part.keys),
        kv[1].narrow(2, 0, part.keys),
        {from(whole.y_BHTK, part.first_query), from(whole.saved, part.first_query).contiguous()},
        part.block);
    if (step > 0) dkv = ring.receive(dkv, kKeyGradients, kWhat);
    from(dq, part.first_query).add_(d.dq_BHTK);
    dkv[0].narrow(2, 0, part.keys).add_(d.dk_BHSK);
    dkv[1].narrow(2, 0, part.keys).add_(d.dv_BHSK);
    ring.send(dkv, kKeyGradients, kWhat);
    if (!last) kv = ring.receive(kv, kKeys, "keys and values");
  }
  dkv = ring.receive(dkv, kKeyGradients, kWhat);
  const at::ScalarType dtype = q.scalar_type();
  return {dq.to(dtype), dkv[0].to(dtype), dkv[1].to(dtype)};
}

struct RingNode : torch::autograd::Function<RingNode> {
  struct Use {
    ops::AttentionArgs args;
    StepContext* context;
  };
  static at::Tensor forward(AutogradContext* node,
                            const at::Tensor& q,
                            const at::Tensor& k,
                            const at::Tensor& v,
                            const Use& use) {
    const ops::AttentionOut out =
        q.is_meta() ? ops::attention_block(q, k, v, {})
                    : forward_around(q, k, v, Ring(use.args, *use.context, q.size(2)));
    node->save_for_backward({q, k, v, out.y_BHTK, out.saved});
    keep(node, use);
    return out.y_BHTK;
  }
  static variable_list backward(AutogradContext* node, const variable_list& grads) {
    const auto saved = node->get_saved_variables();
    const Use& use = kept<Use>(node);
    const at::Tensor& q = saved[0];
    const ops::AttentionOut whole = {saved[3], saved[4]};
    const ops::AttentionGrads d =
        q.is_meta()
            ? ops::attention_block_backward(grads[0], q, saved[1], saved[2], whole, {})
            : backward_around(
                  grads[0], q, saved[1], saved[2], whole, Ring(use.args, *use.context, q.size(2)));
    return {d.dq_BHTK, d.dk_BHSK, d.dv_BHSK, {}};
  }
};

}  // namespace

at::Tensor ring_attention(const at::Tensor& q_BHTK,
                          const at::Tensor& k_BHTK,
                          const at::Tensor& v_BHTK,
                          const ops::AttentionArgs& args,
                          StepContext& context) {
  return RingNode::apply(q_BHTK, k_BHTK, v_BHTK, RingNode::Use{args, &context});
}

}  // namespace tessera::nn
