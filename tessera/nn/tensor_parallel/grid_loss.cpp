// SPDX-License-Identifier: Apache-2.0
// Cross-entropy on a grid of ranks: each rank has the logits of some samples and of a part of the
// vocabulary. The ranks with the same samples exchange four numbers per token, as in mode 1d.
#include <optional>
#include <utility>

#include "tessera/base/error.h"
#include "tessera/comm/world.h"
#include "tessera/mesh/shard_spec.h"
#include "tessera/nn/autograd.h"
#include "tessera/nn/tensor_parallel/grid.h"
#include "tessera/nn/tensor_parallel/loss_gradient.h"
#include "tessera/nn/tensor_parallel/one_d.h"
#include "tessera/nn/tensor_parallel/transfers.h"
#include "tessera/ops/cross_entropy.h"

namespace tessera::nn::grid {
namespace {

using namespace detail;

struct VocabLossNode : torch::autograd::Function<VocabLossNode> {
  struct Use {
    const Param* weight;
    const Param* bias;  // nullptr: none
    StepContext* context;
    double softcap;
    at::Tensor dlogits = {};  // freed as soon as backward has used it
  };
  static variable_list forward(AutogradContext* node,
                               const at::Tensor& x,
                               const at::Tensor& weight,
                               const std::optional<at::Tensor>& bias,
                               const at::Tensor& labels,
                               double label_smoothing,
                               Use use) {
    StepContext& context = *use.context;
    const at::Tensor logits =
        multiply(by_samples(x), weight, use.weight->info(), at::kFloat, context);
    if (bias) logits.add_(*bias);
    const at::Tensor slope = ops::soft_cap_(logits, use.softcap, context.training());
    at::Tensor kept_logits;
    if (context.want_logits) kept_logits = all_logits(logits, *use.weight, context);
    const at::Tensor sum = logits.is_meta() ? post_shape_of_loss(labels, context)
                                            : loss_of(logits, labels, label_smoothing, use);
    if (slope.defined()) logits.mul_(slope);
    if (context.training()) {
      use.dlogits = x.scalar_type() == at::kBFloat16 ? logits.to(at::kBFloat16) : logits;
    }
    save(node, {x, weight});
    keep(node, std::move(use));
    if (!kept_logits.defined()) return {sum};
    if (node != nullptr) node->mark_non_differentiable({kept_logits});
    return {sum, kept_logits};
  }

  /// Posts the exchanges of loss_of() for labels on meta.
  static at::Tensor post_shape_of_loss(const at::Tensor& all_labels, StepContext& context) {
    const TensorParallel& tensor = *context.tensor;
    const Spread spread = inner(tensor.mode);
    const std::int64_t samples = own_samples(all_labels.size(0), spread, tensor).count;
    one_d::post_shape_of_measures(
        samples * all_labels[0].numel(), along({spread.channels}, context), context);
    tensor.world->all_gather(
        along(spread.samples(), context), {0.0}, TESSERA_HERE("losses of the samples"));
    return at::zeros({}, all_labels.options().dtype(at::kDouble));
  }

  /// The loss of all samples, an fp64 scalar on the device of the logits, which are overwritten
  /// with the gradient. The host waits for nothing.
  static at::Tensor loss_of(const at::Tensor& logits_BRV,
                            const at::Tensor& all_labels,
                            double label_smoothing,
                            const Use& use) {
    StepContext& context = *use.context;
    const TensorParallel& tensor = *context.tensor;
    const ParamInfo& info = use.weight->info();
    const std::int64_t V = info.shape.front();
    const Spread spread = inner(tensor.mode);
    ops::count_labels(all_labels.contiguous(), V);
    const Range samples = own_samples(all_labels.size(0), spread, tensor);
    const at::Tensor labels =
        all_labels.narrow(0, samples.begin, samples.count).reshape({-1}).contiguous();
    const comm::Group& sharers = along({spread.channels}, context);
    const std::int64_t first = mesh::even_cut(V, info.unit, sharers.size(), sharers.index).first;
    const at::Tensor logits = logits_BRV.view({labels.numel(), logits_BRV.size(2)});
    const at::Tensor own =
        one_d::cross_entropy_(
            logits, labels, first, V, label_smoothing, context.training(), sharers, context)
            .to(at::kDouble)
            .reshape({1});
    const comm::Group& samplers = along(spread.samples(), context);
    const at::Tensor parts = at::empty({samplers.size()}, own.options());
    finish(tensor.world->transport().all_gather(
        samplers, span_of(own), span_of(parts), TESSERA_HERE("losses of the samples")));
    at::Tensor total = at::zeros({}, own.options());
    for (int i = 0; i < samplers.size(); ++i)
      total = total + parts[i];
    return total;
  }

  static variable_list backward(AutogradContext* node, const variable_list& grads) {
    const auto saved = node->get_saved_variables();
    const at::Tensor &x = saved[0], &weight = saved[1];
    auto& use = kept<Use>(node);
    TESSERA_REQUIRE(
        use.dlogits.defined(), Bug, "a second backward through one loss", "run the forward again");
    const auto [dy, factor] =
        loss_gradient(std::exchange(use.dlogits, {}), grads[0], x.scalar_type());
    const ParamInfo& info = use.weight->info();
    StepContext& context = *use.context;
    const at::Tensor all = gathered(dy, info, context);
    at::Tensor dx;
    if (node->needs_input_grad(0)) {
      dx = input_grad(all, weight, info, context).reshape(x.sizes());
      if (factor != 1.0F) dx.mul_(factor);
    }
    if (node->needs_input_grad(1)) {
      weight_gradient(context, [all, x, factor = factor, w = use.weight, &context] {
        weight_grad(all, by_samples(x), *w, factor, context);
      });
    }
    if (use.bias != nullptr && node->needs_input_grad(2)) {
      weight_gradient(context, [dy = dy, factor = factor, b = use.bias, &context] {
        bias_grad(dy, *b, factor, context);
      });
    }
    return {dx, {}, {}, {}, {}, {}};
  }
};

}  // namespace

VocabLoss vocab_loss(const at::Tensor& x_BTC,
                     const Param& weight_VC,
                     const Param* bias_V,
                     const at::Tensor& labels_BT,
                     double label_smoothing,
                     StepContext& context,
                     double softcap) {
  const variable_list out =
      detail::apply<VocabLossNode>(x_BTC,
                                   weight_VC.tensor(),
                                   bias_V ? std::optional(bias_V->tensor()) : std::nullopt,
                                   labels_BT,
                                   label_smoothing,
                                   VocabLossNode::Use{&weight_VC, bias_V, &context, softcap});
  return {out[0], out.size() > 1 ? out[1] : at::Tensor()};
}

}  // namespace tessera::nn::grid
