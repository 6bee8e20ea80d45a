// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <limits>
#include <utility>

#include <fmt/format.h>

#include "tessera/base/error.h"
#include "tessera/comm/world.h"
#include "tessera/nn/autograd.h"
#include "tessera/nn/context_parallel/attention.h"
#include "tessera/nn/context_parallel/context_parallel.h"
#include "tessera/ops/attention_block.h"
#include "tessera/ops/packed_attention.h"
#include "tessera/tensor/span.h"

namespace tessera::nn {
namespace {

using namespace detail;

/// Message channels of the ring: keys and values, and their gradients.
constexpr int kKeys = 0x7269, kKeyGradients = 0x726a;

struct Range {
  std::int64_t first = 0, count = 0;
};
/// A part of the work: some of this rank's queries and some keys of one rank, for some samples.
struct Part {
  Range samples, queries, keys;  ///< ranges within the tensors of the two ranks
  ops::AttentionBlock block;
  [[nodiscard]] at::Tensor queries_of(const at::Tensor& x_BHTK) const {
    return x_BHTK.narrow(0, samples.first, samples.count).narrow(2, queries.first, queries.count);
  }
  [[nodiscard]] at::Tensor keys_of(const at::Tensor& x_BGTK) const {
    return x_BGTK.narrow(0, samples.first, samples.count).narrow(2, keys.first, keys.count);
  }
};

class Ring {
 public:
  Ring(const ops::AttentionArgs& args, const StepContext& context, const at::Tensor& q)
      : args_(args),
        context_(context),
        group_(*context.context_parallel->group),
        samples_(q.size(0)),
        tokens_(q.size(2)),
        length_(args.place ? args.place->tokens : tokens_ * ranks()) {
    TESSERA_ASSERT(args.query_offset == 0 && tokens_ % 2 == 0);
    if (args.starts_BT.defined()) documents_ = ops::documents_of(args.starts_BT);
  }
  [[nodiscard]] int ranks() const { return group_.size(); }
  /// True if each chunk of queries must be processed with each chunk of keys separately, because
  /// the visible keys depend on their distance or on documents.
  [[nodiscard]] bool by_chunks() const {
    return args_.starts_BT.defined() || args_.window > 0 || !args_.alibi.empty();
  }

  /// True if the first part may not cover all queries of this rank.
  [[nodiscard]] bool leaves_queries() const { return by_chunks() || length_ < tokens_ * ranks(); }

  /// The parts to compute with the keys that are here after `received` messages.
  [[nodiscard]] std::vector<Part> parts(int received) const {
    const int source = (group_.index - received + ranks()) % ranks();
    if (by_chunks()) return of_chunks(source);
    Part part = whole(source);
    if (part.queries.count == 0 || part.keys.count == 0) return {};  // all of them are padding
    return {std::move(part)};
  }

  /// Sends to the next rank. A copy is sent, so that `x` is free at once.
  void send(const at::Tensor& x, int channel, const char* what) const {
    transport().send(neighbour(1), channel, span_of(x.contiguous()), site(what))->wait();
  }
  /// Receives from the previous rank.
  [[nodiscard]] at::Tensor receive(const at::Tensor& like, int channel, const char* what) const {
    at::Tensor out = at::empty(like.sizes(), like.options());
    transport().recv(neighbour(ranks() - 1), channel, span_of(out), site(what))->wait();
    return out;
  }

  /// Restricts [H, T, S] over all keys to the part's queries and keys.
  static at::Tensor of_part(const at::Tensor& bias_HTS, const Part& part) {
    std::vector<at::Tensor> columns;
    for (const ops::Run& run : part.block.keys)
      columns.push_back(bias_HTS.narrow(2, run.begin, run.end - run.begin));
    return at::cat(columns, 2).narrow(1, part.queries.first, part.queries.count).contiguous();
  }
  /// Adds the gradient of of_part() to the gradient of the whole bias.
  static void add_part(const at::Tensor& dbias_HTS, const Part& part, const at::Tensor& dpart) {
    std::int64_t column = 0;
    for (const ops::Run& run : part.block.keys) {
      const std::int64_t keys = run.end - run.begin;
      dbias_HTS.narrow(2, run.begin, keys)
          .narrow(1, part.queries.first, part.queries.count)
          .add_(dpart.narrow(2, column, keys));
      column += keys;
    }
  }

 private:
  /// A rank's early chunk precedes all late chunks, and the chunks of a higher rank are between
  /// those of a lower rank.
  [[nodiscard]] Part whole(int source) const {
    Part out{{0, samples_}, {}, {}, {}};
    std::vector<ops::Run> queries = runs_of(group_.index), keys = runs_of(source);
    if (args_.causal && source < group_.index) keys.pop_back();
    if (args_.causal && source > group_.index) {
      out.queries.first = tokens_ / 2;
      queries.erase(queries.begin());
    }
    // Padding is behind all tokens, so that a rank's tokens precede its padding.
    out.queries.count = tokens_of(queries);
    out.keys.count = tokens_of(keys);
    out.block = block(out.samples, std::move(queries), std::move(keys));
    out.block.causal = args_.causal && source == group_.index;
    return out;
  }

  /// One part for each document that has tokens both in a chunk of queries and in a chunk of keys.
  [[nodiscard]] std::vector<Part> of_chunks(int source) const {
    std::vector<Part> out;
    if (!args_.starts_BT.defined()) {
      add_parts({0, samples_}, {0, length_}, source, out);
      return out;
    }
    for (std::int64_t b = 0; b < samples_; ++b) {
      for (const ops::Run& document : documents_[static_cast<std::size_t>(b)])
        add_parts({b, 1}, document, source, out);
    }
    return out;
  }
  void add_parts(const Range& samples,
                 const ops::Run& document,
                 int source,
                 std::vector<Part>& out) const {
    const std::vector<ops::Run> own = runs_of(group_.index), theirs = runs_of(source);
    const auto held = [&](const std::vector<ops::Run>& runs, std::size_t chunk, ops::Run of) {
      const std::int64_t before = static_cast<std::int64_t>(chunk) * (tokens_ / 2);
      return Range{before + of.begin - runs[chunk].begin, of.end - of.begin};
    };
    for (std::size_t i = 0; i < own.size(); ++i) {
      for (std::size_t j = 0; j < theirs.size(); ++j) {
        const ops::Run queries = common(document, own[i]),
                       keys = seen(queries, common(document, theirs[j]));
        if (queries.begin >= queries.end || keys.begin >= keys.end) continue;
        Part part{samples, held(own, i, queries), held(theirs, j, keys), {}};
        part.block = block(part.samples, {queries}, {keys});
        part.block.causal = args_.causal;
        part.block.query_offset = queries.begin - keys.begin;
        out.push_back(std::move(part));
      }
    }
  }
  /// The keys that at least one of the queries sees.
  [[nodiscard]] ops::Run seen(const ops::Run& queries, const ops::Run& keys) const {
    ops::Run out = keys;
    if (args_.causal) out.end = std::min(out.end, queries.end);
    if (args_.window == 0) return out;
    out.begin = std::max(out.begin, queries.begin - args_.window + (args_.causal ? 1 : 0));
    if (!args_.causal) out.end = std::min(out.end, queries.end + args_.window);
    return out;
  }
  static ops::Run common(const ops::Run& a, const ops::Run& b) {
    return {std::max(a.begin, b.begin), std::min(a.end, b.end)};
  }

  [[nodiscard]] ops::AttentionBlock block(const Range& samples,
                                          std::vector<ops::Run> queries,
                                          std::vector<ops::Run> keys) const {
    ops::AttentionBlock out;
    out.scale = args_.scale;
    out.dropout = args_.dropout;
    if (args_.dropout.active()) {
      const auto first = args_.dropout.sample_ids.begin() + samples.first;
      out.dropout.sample_ids = {first, first + samples.count};
    }
    out.first_head = args_.first_head;
    out.window = args_.window;
    out.softcap = args_.softcap;
    out.alibi = args_.alibi;
    out.tokens = length_;
    if (args_.mask_BS.defined()) {
      std::vector<at::Tensor> columns;
      for (const ops::Run& run : keys)
        columns.push_back(args_.mask_BS.narrow(1, run.begin, run.end - run.begin));
      out.mask_BS = at::cat(columns, 1).narrow(0, samples.first, samples.count);
    }
    for (std::vector<ops::Run>* const runs : {&queries, &keys})
      std::erase_if(*runs, [](const ops::Run& run) { return run.begin == run.end; });
    out.queries = std::move(queries);
    out.keys = std::move(keys);
    return out;
  }
  /// The tokens of a rank's chunks without padding.
  [[nodiscard]] std::vector<ops::Run> runs_of(int rank) const {
    const std::int64_t size = tokens_ / 2;
    std::vector<ops::Run> out;
    for (const std::int64_t chunk : chunks_of(ContextMode::Ring, ranks(), rank))
      out.push_back({std::min(chunk * size, length_), std::min((chunk + 1) * size, length_)});
    return out;
  }
  static std::int64_t tokens_of(const std::vector<ops::Run>& runs) {
    std::int64_t out = 0;
    for (const ops::Run& run : runs)
      out += run.end - run.begin;
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
  std::int64_t samples_, tokens_;
  std::int64_t length_;                           ///< of a sample, without padding
  std::vector<std::vector<ops::Run>> documents_;  ///< for each sample
};

/// The initial state, before any key was processed.
ops::AttentionOut nothing_seen(const at::Tensor& q) {
  const at::TensorOptions options = q.options().dtype(at::kFloat);
  return {
      at::zeros(q.sizes(), options),
      at::full(
          {q.size(0), q.size(1), q.size(2)}, -std::numeric_limits<double>::infinity(), options)};
}

ops::AttentionOut forward_around(const at::Tensor& q,
                                 const at::Tensor& k,
                                 const at::Tensor& v,
                                 const at::Tensor& bias,
                                 const Ring& ring) {
  at::Tensor kv = at::stack({k, v});
  ops::AttentionOut sum;
  if (ring.leaves_queries()) sum = nothing_seen(q);
  for (int step = 0; step < ring.ranks(); ++step) {
    const bool last = step + 1 == ring.ranks();
    if (!last) ring.send(kv, kKeys, "keys and values");
    for (Part& part : ring.parts(step)) {
      if (bias.defined()) part.block.bias_HTS = Ring::of_part(bias, part);
      const ops::AttentionOut out = ops::attention_block(
          part.queries_of(q), part.keys_of(kv[0]), part.keys_of(kv[1]), part.block);
      if (!sum.saved.defined()) {
        sum = {out.y_BHTK.to(at::kFloat), out.saved};
        continue;
      }
      const Range& of = part.samples;
      ops::merge_attention(
          out,
          part.queries.first,
          {sum.y_BHTK.narrow(0, of.first, of.count), sum.saved.narrow(0, of.first, of.count)});
    }
    if (!last) kv = ring.receive(kv, kKeys, "keys and values");
  }
  return {sum.y_BHTK.to(q.scalar_type()), sum.saved};
}

/// The gradients of a rank's keys follow them around the ring; every rank adds its contribution.
ops::AttentionGrads backward_around(const at::Tensor& dy,
                                    const at::Tensor& q,
                                    const at::Tensor& k,
                                    const at::Tensor& v,
                                    const at::Tensor& bias,
                                    const ops::AttentionOut& whole,
                                    const Ring& ring) {
  constexpr const char* kWhat = "gradients of keys and values";
  at::Tensor kv = at::stack({k, v});
  at::Tensor dkv = at::zeros(kv.sizes(), kv.options().dtype(at::kFloat));
  const at::Tensor dq = at::zeros(q.sizes(), q.options().dtype(at::kFloat));
  const at::Tensor dbias = bias.defined() ? at::zeros_like(bias) : at::Tensor();
  for (int step = 0; step < ring.ranks(); ++step) {
    const bool last = step + 1 == ring.ranks();
    if (!last) ring.send(kv, kKeys, "keys and values");
    std::vector<Part> parts = ring.parts(step);
    std::vector<ops::AttentionGrads> grads;
    for (Part& part : parts) {
      if (bias.defined()) part.block.bias_HTS = Ring::of_part(bias, part);
      grads.push_back(ops::attention_block_backward(
          part.queries_of(dy),
          part.queries_of(q),
          part.keys_of(kv[0]),
          part.keys_of(kv[1]),
          {part.queries_of(whole.y_BHTK), part.queries_of(whole.saved).contiguous()},
          part.block));
      if (bias.defined()) Ring::add_part(dbias, part, grads.back().dbias_HTS);
    }
    if (step > 0) dkv = ring.receive(dkv, kKeyGradients, kWhat);
    for (std::size_t i = 0; i < parts.size(); ++i) {
      parts[i].queries_of(dq).add_(grads[i].dq_BHTK);
      parts[i].keys_of(dkv[0]).add_(grads[i].dk_BGSK);
      parts[i].keys_of(dkv[1]).add_(grads[i].dv_BGSK);
    }
    ring.send(dkv, kKeyGradients, kWhat);
    if (!last) kv = ring.receive(kv, kKeys, "keys and values");
  }
  dkv = ring.receive(dkv, kKeyGradients, kWhat);
  const at::ScalarType dtype = q.scalar_type();
  return {dq.to(dtype), dkv[0].to(dtype), dkv[1].to(dtype), dbias};
}

/// Posts the messages of keys and values [2, B, G, T, K] for meta tensors of documents, whose
/// attention the ring cannot divide. `gradients`: also those of the gradients in backward.
void post_shape_of_ring(const at::Tensor& k, const StepContext& context, bool gradients) {
  const ContextParallel& with = *context.context_parallel;
  const int ranks = with.group->size();
  const auto send = [&](DType dtype, int channel) {
    const int next = with.group->ranks[static_cast<std::size_t>((with.group->index + 1) % ranks)];
    const comm::Span span = {nullptr, static_cast<std::size_t>(2 * k.numel()), dtype, {}};
    with.world->transport()
        .send(next,
              channel,
              span,
              TESSERA_HERE(fmt::format("keys and values of {}", context.block_name)))
        ->wait();
  };
  for (int step = 0; step + 1 < ranks; ++step)
    send(from_torch(k.scalar_type()), kKeys);
  for (int step = 0; gradients && step < ranks; ++step)
    send(DType::F32, kKeyGradients);
}

/// On meta tensors the document starts have no values.
bool knows_no_documents(const at::Tensor& q, const ops::AttentionArgs& args) {
  return q.is_meta() && args.starts_BT.defined();
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
                            const std::optional<at::Tensor>& bias,
                            const Use& use) {
    const at::Tensor bias_HTS = bias ? *bias : at::Tensor();
    if (knows_no_documents(q, use.args)) post_shape_of_ring(k, *use.context, /*gradients=*/false);
    const ops::AttentionOut out =
        knows_no_documents(q, use.args)
            ? ops::attention_block(q, k, v, {})
            : forward_around(q, k, v, bias_HTS, Ring(use.args, *use.context, q));
    save(node, {q, k, v, out.y_BHTK, out.saved, bias_HTS});
    keep(node, use);
    return out.y_BHTK;
  }
  static variable_list backward(AutogradContext* node, const variable_list& grads) {
    const auto saved = node->get_saved_variables();
    const Use& use = kept<Use>(node);
    const at::Tensor &q = saved[0], &bias = saved[5];
    const ops::AttentionOut whole = {saved[3], saved[4]};
    if (knows_no_documents(q, use.args)) {
      post_shape_of_ring(saved[1], *use.context, /*gradients=*/true);
      const ops::AttentionGrads d =
          ops::attention_block_backward(grads[0], q, saved[1], saved[2], whole, {});
      return {d.dq_BHTK,
              d.dk_BGSK,
              d.dv_BGSK,
              bias.defined() ? at::empty_like(bias) : at::Tensor(),
              {}};
    }
    const ops::AttentionGrads d = backward_around(
        grads[0], q, saved[1], saved[2], bias, whole, Ring(use.args, *use.context, q));
    return {d.dq_BHTK, d.dk_BGSK, d.dv_BGSK, d.dbias_HTS, {}};
  }
};

}  // namespace

at::Tensor ring_attention(const at::Tensor& q_BHTK,
                          const at::Tensor& k_BGTK,
                          const at::Tensor& v_BGTK,
                          const std::optional<at::Tensor>& bias_HTS,
                          const ops::AttentionArgs& args,
                          StepContext& context) {
  return detail::apply<RingNode>(q_BHTK, k_BGTK, v_BGTK, bias_HTS, RingNode::Use{args, &context});
}

}  // namespace tessera::nn
