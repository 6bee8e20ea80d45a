// SPDX-License-Identifier: Apache-2.0
#include "tessera/ops/norm.h"

#include "tessera/base/error.h"
#include "tessera/nn/autograd.h"
#include "tessera/nn/functional.h"
#include "tessera/nn/line_flow_form.h"
#include "tessera/ops/dropout.h"

namespace tessera::nn {

namespace {

using namespace detail;

/// Layer norm if `centred`, else RMS norm.
ops::LayerNormOut normalise(bool centred,
                            const at::Tensor& x_NC,
                            const at::Tensor& weight,
                            const std::optional<at::Tensor>& bias,
                            double eps,
                            const at::Tensor& branch_NC = {},
                            const ops::DropoutKey& key = {}) {
  if (centred)
    return ops::layer_norm(x_NC, weight, bias.value_or(at::Tensor()), eps, branch_NC, key);
  const ops::RmsNormOut out = ops::rms_norm(x_NC, weight, eps, branch_NC, key);
  return {out.y_NC, {}, out.rstd_N, out.x_NC};
}

/// Returns the norm of x + dropout(branch) and that sum itself. The gradient along the sum is added
/// in the pass that computes the gradient of the norm.
struct NormNode : torch::autograd::Function<NormNode> {
  struct Use {
    bool centred;  // subtracts the mean
    const Param* weight;
    const Param* bias;  // nullptr: none
    StepContext* context;
    double eps;
    ops::DropoutKey key = {};
    bool has_branch = false;
    double offset = 0.0;  // added to the weight
  };
  static at::Tensor multiplier(const at::Tensor& weight, const Use& use) {
    return use.offset == 0.0 ? weight : weight.to(at::kFloat) + use.offset;
  }
  static variable_list forward(AutogradContext* node,
                               const at::Tensor& x,
                               const at::Tensor& weight,
                               const std::optional<at::Tensor>& bias,
                               const std::optional<at::Tensor>& branch,
                               Use use) {
    if (branch) ops::check_residual(x, *branch);
    // Dropout knows an element by its sample.
    const bool drops = branch && use.key.active();
    const ops::LayerNormOut out =
        drops ? normalise(use.centred, x, multiplier(weight, use), bias, use.eps, *branch, use.key)
              : normalise(use.centred,
                          rows(x),
                          multiplier(weight, use),
                          bias,
                          use.eps,
                          branch ? rows(*branch) : at::Tensor());
    const at::Tensor sum = branch ? out.x_NC.view(x.sizes()) : x;
    if (node != nullptr) node->set_materialize_grads(false);
    save(node, {sum, weight, out.mean_N, out.rstd_N, bias ? *bias : at::Tensor()});
    use.has_branch = branch.has_value();
    keep(node, std::move(use));
    return {out.y_NC.view(x.sizes()), sum};
  }

  static variable_list backward(AutogradContext* node, const variable_list& grads) {
    const auto saved = node->get_saved_variables();
    const at::Tensor &x = saved[0], &along = grads[1];
    const Use& use = kept<Use>(node);
    at::Tensor dx = along;
    ops::BranchGrad branch = {.key = &use.key, .dbranch = {}};
    if (grads[0].defined() && use.has_branch && use.key.active()) {
      dx = through_norm(node, x, grads[0], along, &branch);
    } else if (grads[0].defined()) {
      const at::Tensor of_rows = along.defined() ? rows(along) : along;
      dx = through_norm(node, rows(x), rows(grads[0]), of_rows, nullptr).view(x.sizes());
    }
    if (use.has_branch && dx.defined() && !branch.dbranch.defined())
      branch.dbranch = ops::dropout(dx.contiguous(), use.key);
    return {dx, {}, {}, branch.dbranch, {}};
  }

  // The sums over rows are computed with dx in one pass over memory; deferred, they take their own
  // pass.
  static at::Tensor through_norm(AutogradContext* node,
                                 const at::Tensor& x,
                                 const at::Tensor& dy,
                                 const at::Tensor& along,
                                 ops::BranchGrad* branch) {
    const Use& use = kept<Use>(node);
    const auto saved = node->get_saved_variables();
    const at::Tensor weight = multiplier(saved[1], use);
    GradSink* const dw = node->needs_input_grad(1) ? &use.weight->grad() : nullptr;
    GradSink* const db =
        use.bias != nullptr && node->needs_input_grad(2) ? &use.bias->grad() : nullptr;
    const Statistics of_x{saved[2], saved[3]};
    if (!use.context->deferring() || (dw == nullptr && db == nullptr))
      return gradient(dy, x, of_x, weight, dw, db, along, branch);
    // Only dx needs the weight, which may be gone by then.
    use.context->defer([=] { gradient(dy, x, of_x, {}, dw, db, {}, nullptr); });
    return gradient(dy, x, of_x, weight, nullptr, nullptr, along, branch);
  }

  struct Statistics {
    at::Tensor mean_N, rstd_N;  // mean_N: undefined for the RMS norm
  };
  static at::Tensor gradient(const at::Tensor& dy,
                             const at::Tensor& x,
                             const Statistics& of_x,
                             const at::Tensor& weight,
                             GradSink* dw,
                             GradSink* db,
                             const at::Tensor& along,
                             ops::BranchGrad* branch) {
    const at::Tensor to_weight = dw != nullptr ? dw->out() : at::Tensor(),
                     to_bias = db != nullptr ? db->out() : at::Tensor();
    const bool add_weight = dw != nullptr && dw->accumulate(),
               add_bias = db != nullptr && db->accumulate();
    const at::Tensor dx =
        of_x.mean_N.defined()
            ? ops::layer_norm_backward(dy,
                                       x,
                                       of_x.mean_N,
                                       of_x.rstd_N,
                                       weight,
                                       to_weight,
                                       add_weight,
                                       to_bias,
                                       add_bias,
                                       along,
                                       branch)
            : ops::rms_norm_backward(
                  dy, x, of_x.rstd_N, weight, to_weight, add_weight, along, branch);
    if (dw != nullptr) dw->written();
    if (db != nullptr) db->written();
    return dx;
  }

  static at::Tensor again(AutogradContext* node) {
    const auto saved = node->get_saved_variables();
    const std::optional<at::Tensor> bias =
        saved[4].defined() ? std::optional(saved[4]) : std::nullopt;
    const Use& use = kept<Use>(node);
    return normalise(use.centred, rows(saved[0]), multiplier(saved[1], use), bias, use.eps)
        .y_NC.view(saved[0].sizes());
  }
};

Normed norm_of(const at::Tensor& x,
               const at::Tensor& branch,
               const Param& weight,
               const Param* bias,
               NormNode::Use use) {
  const auto given = [](const at::Tensor& tensor) {
    return tensor.defined() ? std::optional(tensor) : std::nullopt;
  };
  variable_list out = detail::apply<NormNode>(x,
                                              weight.tensor(),
                                              given(bias ? bias->tensor() : at::Tensor()),
                                              given(branch),
                                              std::move(use));
  return {std::move(out[1]), std::move(out[0])};
}

}  // namespace

at::Tensor layer_norm(const at::Tensor& x_BTC,
                      const Param& weight,
                      const Param& bias,
                      double eps,
                      StepContext& context) {
  return residual_layer_norm(x_BTC, {}, {}, weight, &bias, eps, context).normed_BTC;
}

at::Tensor rms_norm(const at::Tensor& x_BTC,
                    const Param& weight,
                    double eps,
                    StepContext& context) {
  return residual_rms_norm(x_BTC, {}, {}, weight, eps, context).normed_BTC;
}

Normed residual_layer_norm(const at::Tensor& x_BTC,
                           const at::Tensor& branch_BTC,
                           const ops::DropoutKey& key,
                           const Param& weight,
                           const Param* bias,
                           double eps,
                           StepContext& context) {
  return flow_form(context).layer_norm(x_BTC, branch_BTC, key, weight, bias, eps, context);
}

Normed LineFlowForm::layer_norm(const at::Tensor& x_BTC,
                                const at::Tensor& branch_BTC,
                                const ops::DropoutKey& key,
                                const Param& weight,
                                const Param* bias,
                                double eps,
                                StepContext& context) const {
  return norm_of(
      x_BTC, branch_BTC, weight, bias, {/*centred=*/true, &weight, bias, &context, eps, key});
}

Normed residual_rms_norm(const at::Tensor& x_BTC,
                         const at::Tensor& branch_BTC,
                         const ops::DropoutKey& key,
                         const Param& weight,
                         double eps,
                         StepContext& context,
                         double offset) {
  return flow_form(context).rms_norm(x_BTC, branch_BTC, key, weight, eps, context, offset);
}

Normed LineFlowForm::rms_norm(const at::Tensor& x_BTC,
                              const at::Tensor& branch_BTC,
                              const ops::DropoutKey& key,
                              const Param& weight,
                              double eps,
                              StepContext& context,
                              double offset) const {
  return norm_of(x_BTC,
                 branch_BTC,
                 weight,
                 nullptr,
                 {/*centred=*/false,
                  &weight,
                  nullptr,
                  &context,
                  eps,
                  key,
                  /*has_branch=*/false,
                  offset});
}

detail::Again detail::norm_again(const at::Tensor& x) {
  return x.output_nr() == 0 ? again_by<NormNode>(x) : Again();
}

}  // namespace tessera::nn
