// SPDX-License-Identifier: Apache-2.0
// Norms of queries and keys. Legend: B batch, H heads of this rank, T tokens, K channels of a
// head, N rows.
#include <ATen/ATen.h>

#include "tessera/nn/autograd.h"
#include "tessera/nn/flow_form.h"
#include "tessera/nn/functional.h"
#include "tessera/nn/tensor_parallel/grid.h"
#include "tessera/nn/tensor_parallel/one_d.h"
#include "tessera/nn/tensor_parallel/transfers.h"
#include "tessera/ops/norm.h"

namespace tessera::nn {

namespace {

using namespace detail;

/// The factor that the weight stands for: weight + offset.
at::Tensor multiplier(const at::Tensor& weight, double offset) {
  const at::Tensor plain = weight.view({-1});
  return offset == 0.0 ? plain : plain.to(at::kFloat) + offset;
}

/// Sums in place over the ranks of `group`.
void add_over(const comm::Group& group,
              const at::Tensor& sum,
              StepContext& context,
              const char* what) {
  if (sum.numel() == 0) return;
  finish(context.tensor->world->transport().all_reduce(
      group, span_of(sum), comm::Op::Sum, site(context, what)));
}

void write_weight(const at::Tensor& dweight, const Param& weight, StepContext& context) {
  weight_gradient(context, [dweight, &weight] {
    GradSink& sink = weight.grad();
    const at::Tensor out = sink.out().view({-1});
    if (sink.accumulate()) {
      out.add_(dweight);
    } else {
      out.copy_(dweight);
    }
    sink.written();
  });
}

/// Sums the gradient of a norm of heads over tensor-parallel ranks and writes it. No two of them
/// have the same heads of the same samples. If ranks split the tokens between layers, the gradients
/// of all such weights are summed over them elsewhere.
void write_head_gradient(const at::Tensor& gradient, const Param& weight, StepContext& context) {
  if (context.tensor != nullptr && !context.cuts_tokens())
    add_over(*context.tensor->group, gradient, context, "gradients of a norm of heads");
  write_weight(gradient, weight, context);
}

/// [B, H, T, K] -> rows that hold one token's channels, of one head or of all heads.
at::Tensor rows_of_heads(const at::Tensor& x_BHTK, std::int64_t channels) {
  return x_BHTK.transpose(1, 2).reshape({-1, channels}).contiguous();
}
at::Tensor heads_of_rows(const at::Tensor& rows, at::IntArrayRef sizes_BHTK) {
  return rows.view({sizes_BHTK[0], sizes_BHTK[2], sizes_BHTK[1], sizes_BHTK[3]}).transpose(1, 2);
}

struct Use {
  const Param* weight;
  StepContext* context;
  double eps, offset;
  std::vector<std::int64_t> sizes = {};
};

struct HeadNormNode : torch::autograd::Function<HeadNormNode> {
  static at::Tensor forward(AutogradContext* node,
                            const at::Tensor& x_BHTK,
                            const at::Tensor& weight,
                            Use use) {
    const at::Tensor x = rows_of_heads(x_BHTK, x_BHTK.size(3));
    const ops::RmsNormOut out = ops::rms_norm(x, multiplier(weight, use.offset), use.eps);
    save(node, {x, weight, out.rstd_N});
    use.sizes = x_BHTK.sizes().vec();
    const at::Tensor y = heads_of_rows(out.y_NC, use.sizes);
    keep(node, std::move(use));
    return y;
  }

  static variable_list backward(AutogradContext* node, const variable_list& grads) {
    const auto saved = node->get_saved_variables();
    const at::Tensor &x = saved[0], &weight = saved[1];
    const Use& use = kept<Use>(node);
    at::Tensor dweight;
    if (node->needs_input_grad(1)) dweight = at::empty({x.size(1)}, x.options().dtype(at::kFloat));
    const at::Tensor dx = ops::rms_norm_backward(rows_of_heads(grads[0], x.size(1)),
                                                 x,
                                                 saved[2],
                                                 multiplier(weight, use.offset),
                                                 dweight,
                                                 /*accumulate_weight=*/false);
    if (dweight.defined()) write_head_gradient(dweight, *use.weight, *use.context);
    return {heads_of_rows(dx, use.sizes), {}, {}};
  }
};

struct HeadLayerNormNode : torch::autograd::Function<HeadLayerNormNode> {
  struct UseBoth {
    const Param* weight;
    const Param* bias;
    StepContext* context;
    std::vector<std::int64_t> sizes;
  };
  static at::Tensor forward(AutogradContext* node,
                            const at::Tensor& x_BHTK,
                            const at::Tensor& weight,
                            const at::Tensor& bias,
                            double eps,
                            UseBoth use) {
    const at::Tensor x = rows_of_heads(x_BHTK, x_BHTK.size(3));
    const ops::LayerNormOut out = ops::layer_norm(x, weight.view({-1}), bias.view({-1}), eps);
    save(node, {x, weight, out.mean_N, out.rstd_N});
    use.sizes = x_BHTK.sizes().vec();
    const at::Tensor y = heads_of_rows(out.y_NC, use.sizes);
    keep(node, std::move(use));
    return y;
  }

  static variable_list backward(AutogradContext* node, const variable_list& grads) {
    const auto saved = node->get_saved_variables();
    const at::Tensor& x = saved[0];
    const UseBoth& use = kept<UseBoth>(node);
    const auto floats = [&](bool needed) {
      return needed ? at::empty({x.size(1)}, x.options().dtype(at::kFloat)) : at::Tensor();
    };
    const at::Tensor dweight = floats(node->needs_input_grad(1)),
                     dbias = floats(node->needs_input_grad(2));
    const at::Tensor dx = ops::layer_norm_backward(rows_of_heads(grads[0], x.size(1)),
                                                   x,
                                                   saved[2],
                                                   saved[3],
                                                   saved[1].view({-1}),
                                                   dweight,
                                                   /*accumulate_weight=*/false,
                                                   dbias,
                                                   /*accumulate_bias=*/false);
    if (dweight.defined()) write_head_gradient(dweight, *use.weight, *use.context);
    if (dbias.defined()) write_head_gradient(dbias, *use.bias, *use.context);
    return {heads_of_rows(dx, use.sizes), {}, {}, {}, {}};
  }
};

/// y = x * rstd over the channels of each head.
struct PlainHeadNormNode : torch::autograd::Function<PlainHeadNormNode> {
  static at::Tensor ones(const at::Tensor& x) {
    return at::ones({x.size(1)}, x.options().dtype(at::kFloat));
  }
  static at::Tensor forward(AutogradContext* node, const at::Tensor& x_BHTK, double eps) {
    const at::Tensor x = rows_of_heads(x_BHTK, x_BHTK.size(3));
    const ops::RmsNormOut out = ops::rms_norm(x, ones(x), eps);
    save(node, {x, out.rstd_N});
    at::Tensor y = heads_of_rows(out.y_NC, x_BHTK.sizes());
    return y;
  }
  static variable_list backward(AutogradContext* node, const variable_list& grads) {
    const auto saved = node->get_saved_variables();
    const at::Tensor dx = ops::rms_norm_backward(rows_of_heads(grads[0], grads[0].size(3)),
                                                 saved[0],
                                                 saved[1],
                                                 ones(saved[0]),
                                                 at::Tensor(),
                                                 /*accumulate_weight=*/false);
    return {heads_of_rows(dx, grads[0].sizes()), {}};
  }
};

/// y = x * rstd * weight over the channels of all heads on all ranks.
struct AllHeadsNormNode : torch::autograd::Function<AllHeadsNormNode> {
  /// The mean over the channels of all ranks: fp32 [N, 1].
  static at::Tensor mean(const at::Tensor& values_NC, const Param& weight, StepContext& context) {
    const at::Tensor sum = values_NC.sum(1, /*keepdim=*/true).contiguous();
    if (context.tensor != nullptr)
      add_over(grid::ranks_inside(context), sum, context, "sums of a norm of all heads");
    // Ranks that share a head each hold its channels, and each takes an equal part in backward.
    const std::int64_t all = weight.info().numel() * one_d::copies_of(weight.info(), context);
    return sum / static_cast<double>(all);
  }

  static at::Tensor forward(AutogradContext* node,
                            const at::Tensor& x_BHTK,
                            const at::Tensor& weight,
                            Use use) {
    const at::Tensor x = rows_of_heads(x_BHTK, x_BHTK.size(1) * x_BHTK.size(3)),
                     wide = x.to(at::kFloat);
    const at::Tensor rstd = (mean(wide.square(), *use.weight, *use.context) + use.eps).rsqrt();
    use.sizes = x_BHTK.sizes().vec();
    const at::Tensor y = (wide * rstd * multiplier(weight, use.offset)).to(x.scalar_type());
    save(node, {x, weight, rstd});
    const at::Tensor out = heads_of_rows(y, use.sizes);
    keep(node, std::move(use));
    return out;
  }

  static variable_list backward(AutogradContext* node, const variable_list& grads) {
    const auto saved = node->get_saved_variables();
    const Use& use = kept<Use>(node);
    const at::Tensor x = saved[0].to(at::kFloat), &weight = saved[1], &rstd = saved[2];
    const at::Tensor dy = rows_of_heads(grads[0], x.size(1)).to(at::kFloat), normed = x * rstd;
    if (node->needs_input_grad(1)) {
      at::Tensor dweight = (dy * normed).sum(0);
      dweight = flow_form(*use.context)
                    .sum_over_samples(
                        dweight, use.weight->info(), *use.context, "gradients of a norm of heads");
      if (one_d::copies_of(use.weight->info(), *use.context) > 1)
        one_d::add_over_copies(dweight, *use.context, "gradients of a norm of shared heads");
      write_weight(dweight, *use.weight, *use.context);
    }
    const at::Tensor along = dy * multiplier(weight, use.offset);
    const at::Tensor share = mean(along * normed, *use.weight, *use.context);
    const at::Tensor dx = (along - normed * share) * rstd;
    return {heads_of_rows(dx.to(saved[0].scalar_type()), use.sizes), {}, {}};
  }
};

}  // namespace

at::Tensor head_norm(const at::Tensor& x_BHTK,
                     const Param& weight,
                     double eps,
                     double offset,
                     StepContext& context) {
  return detail::apply<HeadNormNode>(x_BHTK, weight.tensor(), Use{&weight, &context, eps, offset});
}

at::Tensor head_layer_norm(const at::Tensor& x_BHTK,
                           const Param& weight,
                           const Param& bias,
                           double eps,
                           StepContext& context) {
  return detail::apply<HeadLayerNormNode>(x_BHTK,
                                          weight.tensor(),
                                          bias.tensor(),
                                          eps,
                                          HeadLayerNormNode::UseBoth{&weight, &bias, &context, {}});
}

at::Tensor plain_head_norm(const at::Tensor& x_BHTK, double eps) {
  return detail::apply<PlainHeadNormNode>(x_BHTK, eps);
}

at::Tensor all_heads_norm(const at::Tensor& x_BHTK,
                          const Param& weight,
                          double eps,
                          double offset,
                          StepContext& context) {
  return detail::apply<AllHeadsNormNode>(
      x_BHTK, weight.tensor(), Use{&weight, &context, eps, offset});
}

}  // namespace tessera::nn
