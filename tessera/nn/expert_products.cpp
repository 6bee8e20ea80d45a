// SPDX-License-Identifier: Apache-2.0
#include "tessera/nn/expert_products.h"

#include <cmath>
#include <memory>
#include <utility>

#include <fmt/format.h>

#include "tessera/base/error.h"
#include "tessera/nn/low_rank_names.h"
#include "tessera/ops/experts_linear.h"
#include "tessera/ops/int8_rows.h"
#include "tessera/ops/linear.h"

namespace tessera::nn {

using enum LogicalAxis;

void add_expert_low_rank(Params& params, Param& weight, std::vector<ExpertLowRankPart> parts) {
  TESSERA_REQUIRE(weight.extension() == nullptr,
                  Unsupported,
                  fmt::format("{} has two adapters", weight.info().name),
                  "give each weight one adapter");
  const ParamInfo info = weight.info();
  TESSERA_ASSERT(info.stacked() && !parts.empty());
  const std::int64_t experts = info.shape.front(), inputs = info.shape.back();
  auto form = std::make_shared<detail::ExpertLowRank>();
  for (const ExpertLowRankPart& part : parts) {
    const Params::Tags tags = {.without_prefix = true, .role = Role::Matrix};
    form->parts.push_back(
        {.begin = part.begin,
         .end = part.end,
         .scale = part.scale,
         .a = params.add(low_rank_a(part.module),
                         {experts, part.rank, inputs},
                         {Expert, None, None},
                         Init::uniform(1.0 / std::sqrt(static_cast<double>(inputs))),
                         tags),
         .b = params.add(low_rank_b(part.module),
                         {experts, part.end - part.begin, part.rank},
                         {Expert, None, None},
                         Init::zeros(),
                         tags)});
  }
  weight.extend(std::move(form));
}

namespace detail {
namespace {

/// The matrix [O, I] of one of this rank's experts.
at::Tensor matrix_of(const Param& stacked, std::int64_t expert) {
  return matrix(stacked.tensor().detach().select(0, expert));
}

bool trains(const Param* param) {
  return param != nullptr && param->info().trainable;
}

/// The rows of N tokens whose choices have no values: as many for each expert.
ops::ExpertRows balanced_rows(std::int64_t N, std::int64_t K, std::int64_t E) {
  const auto meta = at::TensorOptions().dtype(at::kLong).device(at::kMeta);
  ops::ExpertRows out;
  for (std::int64_t e = 0; e < E; ++e)
    out.counts.push_back(N * K * (e + 1) / E - N * K * e / E);
  out.token_of_R = out.choice_of_R = at::empty({N * K}, meta);
  out.row_of_NK = at::empty({N, K}, meta);
  return out;
}

/// The columns of dy that belong to a part.
at::Tensor columns_of(const at::Tensor& dy_QO, const ExpertLowRank::Part& part) {
  return dy_QO.narrow(1, part.begin, part.end - part.begin).contiguous();
}

/// scale * dy B: the gradient of A x.
at::Tensor inner_grad(const at::Tensor& dy_QO,
                      const ExpertLowRank::Part& part,
                      std::int64_t expert) {
  return ops::linear_input_grad(columns_of(dy_QO, part), matrix_of(*part.b, expert)) * part.scale;
}

}  // namespace

const ExpertLowRank* adapters_of(const Param& weight) {
  return computes_adapters() ? static_cast<const ExpertLowRank*>(weight.extension()) : nullptr;
}

std::optional<at::Tensor> reach_of(const Param& weight) {
  const ExpertLowRank* const adapters = adapters_of(weight);
  return adapters == nullptr ? std::nullopt
                             : std::optional<at::Tensor>(adapters->parts.front().a->tensor());
}

at::Tensor expert_product(const at::Tensor& x_QI,
                          const Param& weight,
                          const Param* bias,
                          std::int64_t expert) {
  const at::Tensor w = matrix_of(weight, expert);
  const at::Tensor b =
      bias == nullptr ? at::Tensor() : bias->tensor().detach().select(0, expert).view({-1});
  at::Tensor y_QO =
      weight.scales().defined()
          ? ops::linear_int8(x_QI,
                             {w, weight.scales().narrow(0, expert * w.size(0), w.size(0))},
                             b,
                             std::nullopt)
          : ops::linear(x_QI, w, b);
  const ExpertLowRank* const adapters = adapters_of(weight);
  if (adapters == nullptr) return y_QO;
  for (const ExpertLowRank::Part& part : adapters->parts) {
    const at::Tensor inner_QR = ops::linear(x_QI, matrix_of(*part.a, expert), at::Tensor());
    y_QO.narrow(1, part.begin, part.end - part.begin)
        .add_(ops::linear(inner_QR, matrix_of(*part.b, expert), at::Tensor()), part.scale);
  }
  return y_QO;
}

at::Tensor expert_products(const at::Tensor& x_QI,
                           const Param& weight,
                           const Param* bias,
                           const std::vector<ExpertUnit>& units) {
  if (adapters_of(weight) != nullptr || !x_QI.is_cpu()) return {};
  std::vector<ops::RowsOfExpert> rows;
  rows.reserve(units.size());
  for (const ExpertUnit& unit : units)
    rows.push_back({unit.expert, unit.begin, unit.rows});
  const at::Tensor w = weight.tensor().detach();
  const std::int64_t E = w.size(0);
  const at::Tensor b = bias == nullptr ? at::Tensor() : bias->tensor().detach().reshape({E, -1});
  return ops::linear_of_experts(x_QI, {w.view({E, -1, w.size(-1)}), weight.scales(), b}, rows);
}

at::Tensor expert_input_grad(const at::Tensor& dy_QO, const Param& weight, std::int64_t expert) {
  at::Tensor dx_QI = ops::linear_input_grad(dy_QO, matrix_of(weight, expert));
  const ExpertLowRank* const adapters = adapters_of(weight);
  if (adapters == nullptr) return dx_QI;
  for (const ExpertLowRank::Part& part : adapters->parts)
    dx_QI.add_(ops::linear_input_grad(inner_grad(dy_QO, part, expert), matrix_of(*part.a, expert)));
  return dx_QI;
}

bool trains_weight(const Param& weight) {
  return trains(&weight) || adapters_of(weight) != nullptr;
}

ExpertSlices::ExpertSlices(const Param* param, std::shared_ptr<const ExpertExchange> exchange)
    : param_(trains(param) ? param : nullptr), exchange_(std::move(exchange)) {
  if (param_ == nullptr) return;
  begun_.assign(static_cast<std::size_t>(exchange_->slices()), false);
  holds_.assign(begun_.size() * static_cast<std::size_t>(experts()), false);
}

const at::Tensor& ExpertSlices::open(int slice) {
  GradSink& sink = param_->grad();
  const at::Tensor& out = sink.out(slice);
  if (begun_[static_cast<std::size_t>(slice)]) return out;
  begun_[static_cast<std::size_t>(slice)] = true;
  for (std::int64_t expert = 0; expert < experts(); ++expert) {
    if (sink.accumulate(slice)) {
      holds_[static_cast<std::size_t>(slice * experts() + expert)] = true;
    } else if (!exchange_->has_rows(slice, expert)) {
      out.select(0, expert).zero_();
    }
  }
  sink.written(slice);
  return out;
}

ExpertWeightSums::ExpertWeightSums(const Param& weight,
                                   const Param* bias,
                                   const std::shared_ptr<const ExpertExchange>& exchange)
    : weight_(&weight, exchange), bias_(bias, exchange) {
  const ExpertLowRank* const adapters = adapters_of(weight);
  if (adapters == nullptr) return;
  for (const ExpertLowRank::Part& part : adapters->parts)
    adapters_.push_back({&part, {part.a, exchange}, {part.b, exchange}});
}

void ExpertWeightSums::add(const ExpertUnit& unit,
                           const at::Tensor& x_QI,
                           const at::Tensor& dy_QO) {
  using Sum = const at::Tensor&;
  weight_.add(unit,
              [&](Sum to, bool adds) { ops::linear_weight_grad(dy_QO, x_QI, matrix(to), adds); });
  bias_.add(unit, [&](Sum to, bool adds) { ops::linear_bias_grad(dy_QO, to.view({-1}), adds); });
  for (Adapter& adapter : adapters_) {
    const ExpertLowRank::Part& part = *adapter.part;
    adapter.a.add(unit, [&](Sum to, bool adds) {
      ops::linear_weight_grad(inner_grad(dy_QO, part, unit.expert), x_QI, matrix(to), adds);
    });
    adapter.b.add(unit, [&](Sum to, bool adds) {
      const at::Tensor inner_QR = ops::linear(x_QI, matrix_of(*part.a, unit.expert), at::Tensor());
      ops::linear_weight_grad(columns_of(dy_QO, part), inner_QR * part.scale, matrix(to), adds);
    });
  }
}

ops::ExpertRows rows_of_choices(const at::Tensor& experts_NK,
                                std::int64_t num_experts,
                                at::Device device) {
  if (device.is_meta()) return balanced_rows(experts_NK.size(0), experts_NK.size(1), num_experts);
  return ops::sort_by_expert(experts_NK, num_experts).on(device);
}

}  // namespace detail
}  // namespace tessera::nn
