// SPDX-License-Identifier: Apache-2.0
// Linear layers, norms and tables on a grid of ranks.
#include <algorithm>
#include <numeric>
#include <utility>

#include "tessera/base/error.h"
#include "tessera/comm/world.h"
#include "tessera/mesh/shard_spec.h"
#include "tessera/nn/autograd.h"
#include "tessera/nn/tensor_parallel/grid.h"
#include "tessera/nn/tensor_parallel/one_d.h"
#include "tessera/nn/tensor_parallel/own_rows.h"
#include "tessera/ops/embedding.h"
#include "tessera/ops/linear.h"

namespace tessera::nn::grid {
namespace {

using namespace detail;

struct LinearNode : torch::autograd::Function<LinearNode> {
  struct Use {
    const Param* weight;
    const Param* bias;
    StepContext* context;
  };
  // As in nn/linear.cpp: the third edge is the bias, if there is one.
  static at::Tensor forward(AutogradContext* node,
                            const at::Tensor& x,
                            const at::Tensor& weight,
                            const std::optional<at::Tensor>& bias,
                            std::optional<at::ScalarType> out,
                            Use use) {
    save(node, {x, weight});
    keep(node, use);
    const at::Tensor y = multiply(
        by_samples(x), weight, use.weight->info(), out.value_or(x.scalar_type()), *use.context);
    if (bias) y.add_(bias->view({-1}));
    auto sizes = x.sizes().vec();
    sizes.front() = y.size(0);
    sizes.back() = y.size(2);
    return y.view(sizes);
  }

  static variable_list backward(AutogradContext* node, const variable_list& grads) {
    const auto saved = node->get_saved_variables();
    const at::Tensor &x = saved[0], &weight = saved[1];
    const Use use = kept<Use>(node);
    const at::Tensor dy = by_samples(grads[0]).to(x.scalar_type());
    const at::Tensor all = gathered(dy, use.weight->info(), *use.context);
    at::Tensor dx;
    if (node->needs_input_grad(0))
      dx = input_grad(all, weight, use.weight->info(), *use.context).reshape(x.sizes());
    if (node->needs_input_grad(1)) {
      weight_gradient(*use.context, [all, x, use] {
        weight_grad(all, by_samples(x), *use.weight, 1.0F, *use.context);
      });
    }
    if (use.bias != nullptr && node->needs_input_grad(2)) {
      weight_gradient(*use.context, [dy, use] { bias_grad(dy, *use.bias, 1.0F, *use.context); });
    }
    return {dx, {}, {}, {}, {}};
  }
};

/// A row's channels are on several ranks, which exchange two sums per row. Rows are fp32; sums over
/// channels and rows are fp64.
struct LayerNormNode : torch::autograd::Function<LayerNormNode> {
  struct Use {
    const Param* weight;
    const Param* bias;  // nullptr: none
    StepContext* context;
  };
  static at::Tensor forward(AutogradContext* node,
                            const at::Tensor& x,
                            const at::Tensor& weight,
                            const std::optional<at::Tensor>& bias,
                            double eps,
                            Use use) {
    const at::Tensor wide = rows(x).to(at::kFloat);
    const comm::Group& ranks = channels_of(*use.context);
    const std::int64_t C = wide.size(1);
    TESSERA_ASSERT(C * ranks.size() == use.weight->info().numel());
    // Sums of squares around the rank's own mean avoid cancellation.
    const at::Tensor own_mean = wide.mean(1, /*keepdim=*/true, at::kDouble);
    const at::Tensor squares =
        (wide - own_mean.to(at::kFloat)).square_().sum(1, /*keepdim=*/true, at::kDouble);
    const at::Tensor all = one_d::all_of(
        at::stack({own_mean, squares}), ranks, "means and squares of rows", *use.context);
    const at::Tensor means = all.select(1, 0), mean = means.mean(at::IntArrayRef{0});
    const at::Tensor square =
        all.select(1, 1).sum(0) + static_cast<double>(C) * (means - mean).square().sum(0);
    const double channels = static_cast<double>(C) * ranks.size();
    const at::Tensor rstd = (square / channels + eps).rsqrt().to(at::kFloat);
    const at::Tensor center = mean.to(at::kFloat);
    save(node, {x, weight, center, rstd});
    keep(node, use);
    const at::Tensor y = (wide - center).mul_(rstd).mul_(weight);
    if (bias) y.add_(*bias);
    return y.to(x.scalar_type()).view(x.sizes());
  }

  static variable_list backward(AutogradContext* node, const variable_list& grads) {
    const auto saved = node->get_saved_variables();
    const at::Tensor &x = saved[0], &weight = saved[1], &mean = saved[2], &rstd = saved[3];
    const Use use = kept<Use>(node);
    const at::Tensor dy = rows(grads[0]).to(at::kFloat);
    const at::Tensor normal = (rows(x).to(at::kFloat) - mean).mul_(rstd);
    const bool wants_weight = node->needs_input_grad(1),
               wants_bias = use.bias != nullptr && node->needs_input_grad(2);
    if (wants_weight || wants_bias) {
      weight_gradient(*use.context, [dy, normal, wants_weight, wants_bias, use] {
        write(dy, normal, wants_weight, wants_bias, use);
      });
    }
    const comm::Group& ranks = channels_of(*use.context);
    const double channels = static_cast<double>(dy.size(1)) * ranks.size();
    const at::Tensor dnormal = dy * weight.to(at::kFloat);
    const at::Tensor own = at::stack({dnormal.sum(1, /*keepdim=*/true, at::kDouble),
                                      (dnormal * normal).sum(1, /*keepdim=*/true, at::kDouble)});
    const at::Tensor means =
        (one_d::all_of(own, ranks, "sums of rows", *use.context).sum(0) / channels).to(at::kFloat);
    const at::Tensor dx = (dnormal - means[0]).sub_(normal * means[1]).mul_(rstd);
    return {dx.to(x.scalar_type()).view(x.sizes()), {}, {}, {}, {}};
  }

  static void write(const at::Tensor& dy,
                    const at::Tensor& normal,
                    bool wants_weight,
                    bool wants_bias,
                    const Use& use) {
    const at::Tensor own = at::stack({(dy * normal).sum(0, /*keepdim=*/false, at::kDouble),
                                      dy.sum(0, /*keepdim=*/false, at::kDouble)})
                               .to(at::kFloat);
    const at::Tensor all =
        sum_over_samples(own, use.weight->info(), *use.context, "gradients of a norm");
    if (wants_weight) use.weight->grad().write(all[0]);
    if (wants_bias) use.bias->grad().write(all[1]);
  }

  static const comm::Group& channels_of(const StepContext& context) {
    return along({stream(context.tensor->mode).channels}, context);
  }
};

/// As LayerNormNode, without the mean.
struct RmsNormNode : torch::autograd::Function<RmsNormNode> {
  struct Use {
    const Param* weight;
    StepContext* context;
    double offset;  // added to the weight
  };
  static at::Tensor multiplier(const at::Tensor& weight, const Use& use) {
    return use.offset == 0.0 ? weight : weight.to(at::kFloat) + use.offset;
  }
  static at::Tensor forward(
      AutogradContext* node, const at::Tensor& x, const at::Tensor& weight, double eps, Use use) {
    const at::Tensor wide = rows(x).to(at::kFloat);
    TESSERA_ASSERT(wide.size(1) * LayerNormNode::channels_of(*use.context).size() ==
                   use.weight->info().numel());
    const at::Tensor squares = wide.square().sum(1, /*keepdim=*/true, at::kDouble);
    const at::Tensor rstd =
        (mean_of_rows(squares, wide.size(1), "squares of rows", use) + eps).rsqrt().to(at::kFloat);
    save(node, {x, weight, rstd});
    keep(node, use);
    return (wide * rstd).mul_(multiplier(weight, use)).to(x.scalar_type()).view(x.sizes());
  }

  static variable_list backward(AutogradContext* node, const variable_list& grads) {
    const auto saved = node->get_saved_variables();
    const at::Tensor &x = saved[0], &weight = saved[1], &rstd = saved[2];
    const Use use = kept<Use>(node);
    const at::Tensor dy = rows(grads[0]).to(at::kFloat);
    const at::Tensor normal = rows(x).to(at::kFloat) * rstd;
    if (node->needs_input_grad(1)) {
      weight_gradient(*use.context, [dy, normal, use] {
        const at::Tensor own = (dy * normal).sum(0, /*keepdim=*/false, at::kDouble).to(at::kFloat);
        use.weight->grad().write(
            sum_over_samples(own, use.weight->info(), *use.context, "gradients of a norm"));
      });
    }
    const at::Tensor dnormal = dy * multiplier(weight, use).to(at::kFloat);
    const at::Tensor dots = (dnormal * normal).sum(1, /*keepdim=*/true, at::kDouble);
    const at::Tensor mean = mean_of_rows(dots, dy.size(1), "sums of rows", use).to(at::kFloat);
    const at::Tensor dx = (dnormal - normal * mean).mul_(rstd);
    return {dx.to(x.scalar_type()).view(x.sizes()), {}, {}, {}};
  }

  /// The mean over the channels of all ranks, from sums [N, 1] over this rank's `channels`.
  static at::Tensor mean_of_rows(const at::Tensor& own_N1,
                                 std::int64_t channels,
                                 const char* what,
                                 const Use& use) {
    const comm::Group& ranks = LayerNormNode::channels_of(*use.context);
    return one_d::all_of(own_N1, ranks, what, *use.context).sum(0) /
           (static_cast<double>(channels) * ranks.size());
  }
};

/// Every rank looks up the tokens of all ranks along the minor axis of samples in its own rows; the
/// sums are sent to the ranks that have these tokens.
struct TableNode : torch::autograd::Function<TableNode> {
  struct Use {
    const Param* table;
    StepContext* context;
    OwnRows own;
    std::int64_t batch;
  };
  static at::Tensor forward(AutogradContext* node,
                            const at::Tensor& ids,
                            const at::Tensor& table,
                            Use use) {
    StepContext& context = *use.context;
    const Spread spread = stream(context.tensor->mode);
    const Range samples = major_samples(use.batch, spread, *context.tensor);
    const at::Tensor some = ids.narrow(0, samples.begin, samples.count);
    const at::Tensor part = whole_over_major(table, use.table->info(), context, "the table");
    const std::int64_t R = ids.numel() / ids.size(0), C = part.size(1);
    at::Tensor found;
    if (some.numel() == 0) {
      found = at::empty({samples.count, R, C}, table.options());
    } else {
      use.own = own_rows(some.reshape({-1}).contiguous(), use.table->info());
      found = ops::embedding(part, use.own.rows_N)
                  .masked_fill_(use.own.elsewhere_N.unsqueeze(1), 0)
                  .view({samples.count, R, C});
    }
    const at::Tensor own = scatter(found,
                                   0,
                                   minor_counts(use.batch, spread, *context.tensor),
                                   spread.minor,
                                   context,
                                   "rows of the table");
    auto sizes = ids.sizes().vec();
    sizes.front() = own.size(0);
    sizes.push_back(C);
    keep(node, std::move(use));
    return own.reshape(sizes);
  }

  static variable_list backward(AutogradContext* node, const variable_list& grads) {
    if (!node->needs_input_grad(1)) return {{}, {}, {}};
    const Use& use = kept<Use>(node);
    StepContext& context = *use.context;
    const Spread spread = stream(context.tensor->mode);
    const at::Tensor dy = gather(by_samples(grads[0]),
                                 0,
                                 minor_counts(use.batch, spread, *context.tensor),
                                 spread.minor,
                                 context,
                                 "gradients of rows of the table");
    weight_gradient(context, [dy, own = use.own, table = use.table, &context] {
      write(dy, own, *table, context);
    });
    return {{}, {}, {}};
  }

  static void write(const at::Tensor& dy_BRC,
                    const OwnRows& own,
                    const Param& table,
                    StepContext& context) {
    RowGradients here;
    if (dy_BRC.numel() > 0) here = gradients_of(own, rows(dy_BRC));
    const Spread spread = stream(context.tensor->mode);
    if (along({spread.major}, context).size() == 1 && dy_BRC.numel() > 0) {
      return write_rows(here.dy_NC, here.rows_N, table.grad());
    }
    const at::Tensor part = at::zeros({table.info().local_shape().front(), dy_BRC.size(2)},
                                      dy_BRC.options().dtype(at::kFloat));
    if (dy_BRC.numel() > 0) ops::embedding_grad(here.dy_NC, here.rows_N, part, /*accumulate=*/true);
    table.grad().write(sum_over_major(part, table.info(), context, "gradients of the table"));
  }
};

/// A table of one row is placed as a vector is: every rank has this rank's channels of the row and
/// adds them to its own samples.
struct OneRowNode : torch::autograd::Function<OneRowNode> {
  struct Use {
    const Param* table;
    StepContext* context;
  };
  static at::Tensor forward(AutogradContext* node,
                            const at::Tensor& ids,
                            const at::Tensor& table,
                            Use use) {
    StepContext& context = *use.context;
    if (!ids.is_meta()) own_rows(ids.reshape({-1}).contiguous(), use.table->info());
    keep(node, use);
    auto sizes = ids.sizes().vec();
    sizes.front() = own_samples(ids.size(0), stream(context.tensor->mode), *context.tensor).count;
    sizes.push_back(table.size(1));
    return table[0].expand(sizes).contiguous();
  }
  static variable_list backward(AutogradContext* node, const variable_list& grads) {
    const Use use = kept<Use>(node);
    if (node->needs_input_grad(1)) {
      weight_gradient(*use.context, [dy = by_samples(grads[0]), use] {
        bias_grad(dy, *use.table, 1.0F, *use.context);
      });
    }
    return {{}, {}, {}};
  }
};

/// A value that is placed over the ranks by `spread`.
struct Placed {
  StepContext* context;
  Spread spread;
  std::int64_t batch;  ///< number of samples of all ranks
  /// The number of channels of each rank along spread.channels; empty: these ranks have the same.
  std::vector<std::int64_t> channels;
  const char* what;
};

at::Tensor all_of(const at::Tensor& x, const Placed& use) {
  StepContext& context = *use.context;
  const TensorParallel& tensor = *context.tensor;
  const Spread& spread = use.spread;
  const mesh::Mesh& mesh = tensor.world->mesh();
  std::vector<std::int64_t> samples;
  for (int r = 0; r < mesh.size(spread.major); ++r) {
    const auto [begin, end] = mesh::even_cut(use.batch, 1, mesh.size(spread.major), r);
    samples.push_back(end - begin);
  }
  at::Tensor all = by_samples(x);
  if (!use.channels.empty()) all = gather(all, 2, use.channels, spread.channels, context, use.what);
  all = gather(all, 0, minor_counts(use.batch, spread, tensor), spread.minor, context, use.what);
  all = gather(all, 0, samples, spread.major, context, use.what);
  auto sizes = x.sizes().vec();
  sizes.front() = all.size(0);
  sizes.back() = all.size(2);
  return all.reshape(sizes);
}

at::Tensor own_of(const at::Tensor& all, const Placed& use) {
  const Range samples = own_samples(use.batch, use.spread, *use.context->tensor);
  if (use.channels.empty()) return all.narrow(0, samples.begin, samples.count);
  const auto rank = static_cast<std::size_t>(along({use.spread.channels}, *use.context).index);
  const std::int64_t first = std::accumulate(
      use.channels.begin(), use.channels.begin() + static_cast<std::ptrdiff_t>(rank), INT64_C(0));
  return all.narrow(0, samples.begin, samples.count).narrow(-1, first, use.channels[rank]);
}

/// Gathers the parts of such a value.
struct GatherNode : torch::autograd::Function<GatherNode> {
  static at::Tensor forward(AutogradContext* node, const at::Tensor& x, const Placed& use) {
    keep(node, use);
    return all_of(x, use);
  }
  static variable_list backward(AutogradContext* node, const variable_list& grads) {
    return {own_of(grads[0], kept<Placed>(node)), {}};
  }
};

/// Takes this rank's part of a value that all ranks have.
struct TakeNode : torch::autograd::Function<TakeNode> {
  static at::Tensor forward(AutogradContext* node, const at::Tensor& x, const Placed& use) {
    keep(node, use);
    return own_of(x, use).contiguous();
  }
  static variable_list backward(AutogradContext* node, const variable_list& grads) {
    return {all_of(grads[0], kept<Placed>(node)), {}};
  }
};

/// The placement between layers; `channels`: of each rank.
Placed in_flow(std::int64_t channels, StepContext& context) {
  TESSERA_ASSERT(context.batch != nullptr);
  const Spread spread = stream(context.tensor->mode);
  const auto parts = static_cast<std::size_t>(context.tensor->world->mesh().size(spread.channels));
  return {&context,
          spread,
          context.batch->size(),
          std::vector<std::int64_t>(parts, channels),
          "hidden states"};
}

/// The number of columns of the logits that each rank has.
std::vector<std::int64_t> columns_of(const ParamInfo& head, const StepContext& context) {
  const int parts = ranks_inside(context).size();
  std::vector<std::int64_t> out;
  for (int r = 0; r < parts; ++r) {
    const auto [begin, end] = mesh::even_cut(head.shape.front(), head.unit, parts, r);
    out.push_back(end - begin);
  }
  return out;
}

}  // namespace

at::Tensor linear(const at::Tensor& x,
                  const Param& weight,
                  const Param* bias,
                  std::optional<at::ScalarType> out,
                  StepContext& context) {
  return detail::apply<LinearNode>(x,
                                   weight.tensor(),
                                   bias ? std::optional<at::Tensor>(bias->tensor()) : std::nullopt,
                                   out,
                                   LinearNode::Use{&weight, bias, &context});
}

at::Tensor layer_norm(const at::Tensor& x_BTC,
                      const Param& weight,
                      const Param* bias,
                      double eps,
                      StepContext& context) {
  return detail::apply<LayerNormNode>(
      x_BTC,
      weight.tensor(),
      bias ? std::optional<at::Tensor>(bias->tensor()) : std::nullopt,
      eps,
      LayerNormNode::Use{&weight, bias, &context});
}

at::Tensor rms_norm(
    const at::Tensor& x_BTC, const Param& weight, double eps, double offset, StepContext& context) {
  return detail::apply<RmsNormNode>(
      x_BTC, weight.tensor(), eps, RmsNormNode::Use{&weight, &context, offset});
}

at::Tensor embedding(const at::Tensor& ids_BT, const Param& table, StepContext& context) {
  if (table.info().shape.front() == 1)
    return detail::apply<OneRowNode>(ids_BT, table.tensor(), OneRowNode::Use{&table, &context});
  return detail::apply<TableNode>(
      ids_BT, table.tensor(), TableNode::Use{&table, &context, {}, ids_BT.size(0)});
}

at::Tensor all_logits(const at::Tensor& x, const Param& weight_VC, StepContext& context) {
  TESSERA_ASSERT(context.batch != nullptr);
  return detail::apply<GatherNode>(x,
                                   Placed{&context,
                                          inner(context.tensor->mode),
                                          context.batch->size(),
                                          columns_of(weight_VC.info(), context),
                                          "logits"});
}

at::Tensor all_columns(const at::Tensor& logits_NV, const ParamInfo& info, StepContext& context) {
  return gather(logits_NV,
                1,
                columns_of(info, context),
                inner(context.tensor->mode).channels,
                context,
                "logits");
}

at::Tensor all_samples(const at::Tensor& x_BT, StepContext& context) {
  TESSERA_ASSERT(context.batch != nullptr);
  return detail::apply<GatherNode>(
      x_BT,
      Placed{
          &context, inner(context.tensor->mode), context.batch->size(), {}, "values of samples"});
}

at::Tensor gather_flow(const at::Tensor& x, StepContext& context) {
  return detail::apply<GatherNode>(x, in_flow(x.size(-1), context));
}

at::Tensor take_flow(const at::Tensor& x, StepContext& context) {
  const int parts = context.tensor->world->mesh().size(stream(context.tensor->mode).channels);
  TESSERA_ASSERT(x.size(-1) % parts == 0);
  return detail::apply<TakeNode>(x, in_flow(x.size(-1) / parts, context));
}

void bias_grad(const at::Tensor& dy_BRO, const Param& bias, float scale, StepContext& context) {
  const at::Tensor own = at::zeros({dy_BRO.size(2)}, dy_BRO.options().dtype(at::kFloat));
  if (dy_BRO.numel() > 0) ops::linear_bias_grad(rows(dy_BRO), own, /*accumulate=*/false);
  if (scale != 1.0F) own.mul_(scale);
  const at::Tensor all = sum_over_samples(own, bias.info(), context, "gradients of a bias");
  bias.grad().write(all.view(bias.grad().out().sizes()));
}

}  // namespace tessera::nn::grid
