// SPDX-License-Identifier: Apache-2.0
#include "tessera/nn/tensor_parallel/grid_low_rank.h"

#include <algorithm>
#include <vector>

#include <fmt/format.h>

#include "tessera/base/error.h"
#include "tessera/comm/world.h"
#include "tessera/nn/autograd.h"
#include "tessera/nn/functional.h"
#include "tessera/nn/low_rank_form.h"
#include "tessera/nn/tensor_parallel/grid.h"
#include "tessera/ops/linear.h"

namespace tessera::nn::grid {
namespace {

using namespace detail;

/// This rank's samples of x [B, T, R], which are placed as `from`, placed as `to`. Ranks along the
/// channels of `from` have the same x.
at::Tensor moved(const at::Tensor& x, const Spread& from, const Spread& to, StepContext& context) {
  if (from.minor == to.minor) return x;
  TESSERA_ASSERT(context.batch != nullptr && from.major == to.major);
  const TensorParallel& tensor = *context.tensor;
  const std::int64_t batch = context.batch->size();
  const at::Tensor all = gather(
      x, 0, minor_counts(batch, from, tensor), from.minor, context, "hidden values of an adapter");
  const Range own = own_samples(batch, to, tensor);
  return all.narrow(0, own.begin - major_samples(batch, to, tensor).begin, own.count).contiguous();
}

at::Tensor product(const at::Tensor& x_BTI, const at::Tensor& weight, at::ScalarType out) {
  const at::Tensor matrix_OI = matrix(weight);
  const std::int64_t B = x_BTI.size(0), T = x_BTI.size(1), O = matrix_OI.size(0);
  // A rank may have no sample.
  if (x_BTI.numel() == 0) return at::zeros({B, T, O}, x_BTI.options().dtype(out));
  return ops::linear(rows(x_BTI), matrix_OI, {}, out).view({B, T, O});
}

/// dy weight in fp32.
at::Tensor product_back(const at::Tensor& dy_BTO, const at::Tensor& weight) {
  if (dy_BTO.numel() == 0) {
    return at::zeros({dy_BTO.size(0), dy_BTO.size(1), weight.size(-1)},
                     dy_BTO.options().dtype(at::kFloat));
  }
  return ops::linear_input_grad(rows(dy_BTO).to(at::kFloat), matrix(weight).to(at::kFloat))
      .view({dy_BTO.size(0), dy_BTO.size(1), weight.size(-1)});
}

/// Writes scale * dy^T x, summed over the samples of all ranks.
void write_gradient(const at::Tensor& dy_BTO,
                    const at::Tensor& x_BTI,
                    double scale,
                    const Param& weight,
                    StepContext& context) {
  const at::Tensor own =
      at::zeros({dy_BTO.size(2), x_BTI.size(2)}, dy_BTO.options().dtype(at::kFloat));
  if (dy_BTO.numel() > 0) {
    ops::linear_weight_grad(
        rows(dy_BTO), rows(x_BTI), own, /*accumulate=*/false, static_cast<float>(scale));
  }
  const at::Tensor all = sum_over_samples(own, weight.info(), context, "gradients of an adapter");
  weight.grad().write(all.view(weight.grad().out().sizes()));
}

struct LowRankNode : torch::autograd::Function<LowRankNode> {
  struct Use {
    const Param *a, *b;
    double scale;
    StepContext* context;
  };
  static at::Tensor forward(AutogradContext* node,
                            const at::Tensor& x,
                            const at::Tensor& a,
                            const at::Tensor& b,
                            Use use) {
    StepContext& context = *use.context;
    const Spread in = spread_of(use.a->info(), context.tensor->mode),
                 out = spread_of(use.b->info(), context.tensor->mode);
    const at::Tensor x_BTI = by_samples(x);
    const at::Tensor whole =
        sum(product(x_BTI, a, at::kFloat), {in.channels}, context, "hidden values of an adapter");
    const at::Tensor low =
        (moved(whole, in, out, context) * use.scale).to(x.scalar_type()).contiguous();
    const at::Tensor y = product(low, b, x.scalar_type());
    save(node, {x_BTI, a, b, low});
    auto sizes = x.sizes().vec();
    keep(node, std::pair{use, sizes});
    sizes.front() = y.size(0);
    sizes.back() = y.size(2);
    return y.view(sizes);
  }

  static variable_list backward(AutogradContext* node, const variable_list& grads) {
    const auto saved = node->get_saved_variables();
    const at::Tensor &x = saved[0], &a = saved[1], &b = saved[2], &low = saved[3];
    const auto& [use, sizes] = kept<std::pair<Use, std::vector<std::int64_t>>>(node);
    StepContext& context = *use.context;
    const Spread in = spread_of(use.a->info(), context.tensor->mode),
                 out = spread_of(use.b->info(), context.tensor->mode);
    const at::Tensor dy = by_samples(grads[0]).to(x.scalar_type());
    const at::Tensor whole =
        sum(product_back(dy, b), {out.channels}, context, "gradients of an adapter's values");
    const at::Tensor dlow =
        (moved(whole, out, in, context) * use.scale).to(x.scalar_type()).contiguous();
    at::Tensor dx;
    if (node->needs_input_grad(0)) {
      dx = dlow.numel() == 0 ? at::zeros(sizes, x.options())
                             : ops::linear_input_grad(rows(dlow), a).view(sizes);
    }
    if (node->needs_input_grad(1)) {
      weight_gradient(
          context, [dlow, x, &context, p = use.a] { write_gradient(dlow, x, 1.0, *p, context); });
    }
    if (node->needs_input_grad(2)) {
      // `low` contains the scale.
      weight_gradient(
          context, [dy, low, &context, p = use.b] { write_gradient(dy, low, 1.0, *p, context); });
    }
    return {dx, {}, {}, {}};
  }
};

struct VectorNode : torch::autograd::Function<VectorNode> {
  struct Use {
    const Param* vector;
    StepContext* context;
  };
  static at::Tensor forward(AutogradContext* node, const at::Tensor& vector, Use use) {
    keep(node, use);
    return vector.view_as(vector);
  }
  static variable_list backward(AutogradContext* node, const variable_list& grads) {
    const Use use = kept<Use>(node);
    return {sum_over_samples(
                grads[0].contiguous(), use.vector->info(), *use.context, "gradients of an adapter"),
            {}};
  }
};

/// The sum of this rank's part [..] of a value and of all others, in a box of the value's shape.
at::Tensor joined(const at::Tensor& own,
                  const mesh::Box& box,
                  const Shape& shape,
                  const ParamInfo& cut_as,
                  StepContext& context) {
  at::Tensor all = at::zeros(shape, own.options());
  at::Tensor part = all;
  for (std::size_t d = 0; d < shape.size(); ++d)
    part = part.narrow(static_cast<std::int64_t>(d), box.begin[d], box.end[d] - box.begin[d]);
  part.copy_(own.view(part.sizes()));
  for (const mesh::Axis axis : {mesh::Axis::TpDepth, mesh::Axis::TpRow, mesh::Axis::TpCol}) {
    const bool cuts = std::any_of(cut_as.spec.splits.begin(),
                                  cut_as.spec.splits.end(),
                                  [&](const mesh::Split& split) { return split.axes.has(axis); });
    if (cuts) all = sum(all, {axis}, context, "an adapter");
  }
  return all;
}

at::Tensor whole_of(const Param& param, StepContext& context) {
  const ParamInfo& info = param.info();
  return joined(param.tensor().to(at::kFloat), info.held(), info.shape, info, context);
}

at::Tensor part_of(const at::Tensor& all, const mesh::Box& box, std::size_t dims) {
  at::Tensor out = all;
  for (std::size_t d = 0; d < dims; ++d)
    out = out.narrow(static_cast<std::int64_t>(d), box.begin[d], box.end[d] - box.begin[d]);
  return out;
}

}  // namespace

at::Tensor low_rank(
    const at::Tensor& x, const Param& a, const Param& b, double scale, StepContext& context) {
  return detail::apply<LowRankNode>(
      x, a.tensor(), b.tensor(), LowRankNode::Use{&a, &b, scale, &context});
}

at::Tensor vector_of(const Param& vector, StepContext& context) {
  return detail::apply<VectorNode>(vector.tensor(), VectorNode::Use{&vector, &context});
}

void cut_input_dropout(ops::DropoutKey& key, const Param& a, const StepContext& context) {
  const TensorParallel& tensor = *context.tensor;
  const Spread spread = spread_of(a.info(), tensor.mode);
  const comm::Group& group = along({spread.channels}, context);
  TESSERA_REQUIRE(a.info().local_shape().back() * group.size() == a.info().shape.back(),
                  Unsupported,
                  fmt::format("adapter.dropout before {}, of whose features ranks hold unequal "
                              "shares",
                              a.info().name),
                  "set adapter.dropout to 0, or choose sizes that the grid divides");
  TESSERA_ASSERT(context.batch != nullptr);
  const std::vector<std::int64_t>& ids = context.batch->sample_ids;
  const Range own = own_samples(std::ssize(ids), spread, tensor);
  key.sample_ids = {ids.begin() + own.begin, ids.begin() + own.begin + own.count};
  key.columns = group.size();
  key.column = group.index;
}

at::Tensor row_norms(const at::Tensor& held,
                     const ParamInfo& weight,
                     const Param& a,
                     const Param& b,
                     double scale,
                     StepContext& context) {
  const std::size_t outer = b.info().shape.size() - 1;
  Shape outputs = b.info().shape;
  outputs.pop_back();
  // W's box of the outputs of B: B may cover a part of one dim, which is not cut.
  mesh::Box box = weight.held();
  const std::int64_t begin = box.begin.back(), end = box.end.back();
  box.begin.pop_back();
  box.end.pop_back();
  for (std::size_t d = 0; d < outer; ++d) {
    if (outputs[d] == weight.shape[d]) continue;
    box.begin[d] = 0;
    box.end[d] = outputs[d];
  }
  const at::Tensor own_a = whole_of(a, context).narrow(1, begin, end - begin) * scale,
                   own_b = part_of(whole_of(b, context), box, outer);
  const at::Tensor change =
      at::matmul(own_b.reshape({-1, own_b.size(-1)}), own_a).view(held.sizes());
  const at::Tensor squares = (held.to(at::kFloat) + change).square().sum(-1);
  const at::Tensor all = joined(squares, box, outputs, weight, context);
  return part_of(all, b.info().held(), outer).sqrt();
}

}  // namespace tessera::nn::grid

namespace tessera::nn {
namespace {

class GridLowRank final : public LowRankForm {
 public:
  [[nodiscard]] at::Tensor drop_input(const at::Tensor& x,
                                      ops::DropoutKey key,
                                      const ParamInfo& /*weight*/,
                                      const Param& a,
                                      const StepContext& context) const override {
    grid::cut_input_dropout(key, a, context);
    return nn::dropout(x, key);
  }
  [[nodiscard]] at::Tensor product(const at::Tensor& x,
                                   const Param& a,
                                   const Param& b,
                                   double scale,
                                   StepContext& context) const override {
    return grid::low_rank(x, a, b, scale, context);
  }
  [[nodiscard]] at::Tensor row_norms(const at::Tensor& held,
                                     const ParamInfo& weight,
                                     const Param& a,
                                     const Param& b,
                                     double scale,
                                     StepContext& context) const override {
    return grid::row_norms(held, weight, a, b, scale, context).flatten();
  }
  [[nodiscard]] at::Tensor magnitude(const Param& vector, StepContext& context) const override {
    return grid::vector_of(vector, context);
  }
  [[nodiscard]] bool merges() const override { return false; }
};

}  // namespace

const LowRankForm& grid_low_rank_form() {
  static const GridLowRank form;
  return form;
}

}  // namespace tessera::nn
