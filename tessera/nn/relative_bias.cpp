// SPDX-License-Identifier: Apache-2.0
// The learned attention bias by the distance between key and query. Legend: H heads of this rank, T
// queries, S keys, N buckets, D distances.
#include <utility>
#include <vector>

#include <ATen/ATen.h>

#include "tessera/comm/world.h"
#include "tessera/nn/autograd.h"
#include "tessera/nn/flow_form.h"
#include "tessera/nn/functional.h"
#include "tessera/tensor/upload.h"

namespace tessera::nn {

namespace {

using namespace detail;

struct RelativeBiasNode : torch::autograd::Function<RelativeBiasNode> {
  struct Use {
    const Param* table;
    StepContext* context;
    at::Tensor buckets_D;
    std::int64_t keys;
  };

  // Entry d of the list is for the distance of key d from the last query; the bias of each earlier
  // query starts one entry later.
  static at::Tensor forward(AutogradContext* node, const at::Tensor& table_NH, Use use) {
    const at::Tensor values_HD = table_NH.to(at::kFloat).index_select(0, use.buckets_D).t();
    const at::Tensor bias_HTS = values_HD.contiguous().unfold(1, use.keys, 1).flip({1});
    keep(node, std::move(use));
    return bias_HTS;
  }

  static variable_list backward(AutogradContext* node, const variable_list& grads) {
    if (!node->needs_input_grad(0)) return {{}, {}};
    const Use& use = kept<Use>(node);
    const ParamInfo& info = use.table->info();
    const at::Tensor along_HTS = grads[0].flip({1});
    const at::Tensor values_HD =
        at::unfold_backward(along_HTS, {along_HTS.size(0), use.buckets_D.size(0)}, 1, use.keys, 1);
    const at::Tensor table_NH =
        at::zeros({info.shape.front(), along_HTS.size(0)}, along_HTS.options())
            .index_add_(0, use.buckets_D, values_HD.t());
    weight_gradient(*use.context, [table_NH, table = use.table, context = use.context] {
      // The ranks of a grid that have the same heads have other samples.
      table->grad().write(flow_form(*context).sum_over_samples(
          table_NH, table->info(), *context, "gradients of biases"));
    });
    return {{}, {}};
  }
};

}  // namespace

namespace {

/// The bias of consecutive queries, the first at position `place`, and the keys from 0 on.
at::Tensor bias_of(const Param& table,
                   const ops::RelativeBuckets& rule,
                   std::int64_t place,
                   std::int64_t queries,
                   std::int64_t keys,
                   StepContext& context) {
  at::Tensor weight = table.tensor();
  if (weight.is_meta())
    return at::empty({weight.size(1), queries, keys}, weight.options().dtype(at::kFloat));
  if (table.scales().defined()) weight = weight.to(at::kFloat) * table.scales().unsqueeze(1);
  const std::int64_t first = 1 - queries - place;
  const at::Tensor buckets_D =
      on_device(ops::relative_buckets(rule, first, queries + keys - 1), weight.device());
  return detail::apply<RelativeBiasNode>(weight,
                                         RelativeBiasNode::Use{&table, &context, buckets_D, keys});
}

}  // namespace

at::Tensor relative_bias(const Param& table,
                         const ops::RelativeBuckets& rule,
                         std::int64_t queries,
                         std::int64_t keys,
                         StepContext& context) {
  if (!context.shares_tokens())
    return bias_of(table, rule, context.position, queries, keys, context);
  const ContextParallel& with = *context.context_parallel;
  const std::int64_t ranks = with.group->size();
  if (with.mode == ContextMode::Ulysses) {
    const at::Tensor bias_HSS = bias_of(table, rule, 0, queries * ranks, keys * ranks, context);
    const std::int64_t heads = bias_HSS.size(0) / ranks;
    return bias_HSS.narrow(0, with.group->index * heads, heads);
  }
  std::vector<at::Tensor> chunks;
  for (const std::int64_t chunk : own_chunks(context)) {
    const std::int64_t each = queries / 2;
    chunks.push_back(bias_of(table, rule, chunk * each, each, keys * ranks, context));
  }
  return at::cat(chunks, 1);
}

}  // namespace tessera::nn
