// SPDX-License-Identifier: Apache-2.0
#include "tessera/engine/contributions.h"

#include <cmath>
#include <cstddef>
#include <utility>

#include <ATen/ATen.h>

#include "tessera/base/error.h"

namespace tessera::engine {
namespace {

double inner_product(const at::Tensor& a, const at::Tensor& b) {
  return a.mul(b).sum(at::kDouble).item<double>();
}

}  // namespace

std::vector<Contribution> contributions_to(
    TrainState& state,
    comm::World& world,
    int num_micros,
    const TrainState::LoadMicro& load,
    std::int64_t samples,
    const std::function<nn::Batch(std::int64_t first, std::int64_t end)>& load_samples) {
  const double scale = state.loss_scale();
  // This rank's ranges of the whole gradient, in the order of the visits.
  std::vector<at::Tensor> whole;
  double squares = 0.0;
  const std::vector<double> denominators = state.gradient(
      num_micros,
      load,
      {},
      [&](const auto& /*info*/, const at::Tensor& /*weights*/, const at::Tensor& gradient) {
        whole.push_back(gradient / scale);
        squares += inner_product(whole.back(), whole.back());
      });
  std::vector<double> sums = {squares};  // then two of each sample
  const bool first_rank = world.group(mesh::AxisSet::dp()).index == 0;
  const int single = state.round_micros(1);
  for (std::int64_t i = 0; i < samples; ++i) {
    std::size_t range = 0;
    double own = 0.0, with_whole = 0.0;
    state.gradient(
        single,
        [&](int micro) {
          return first_rank && micro == 0 ? load_samples(i, i + 1) : load_samples(i, i);
        },
        denominators,
        [&](const auto& /*info*/, const at::Tensor& /*weights*/, const at::Tensor& gradient) {
          const at::Tensor part = gradient / scale;
          own += inner_product(part, part);
          with_whole += inner_product(part, whole.at(range++));
        });
    TESSERA_ASSERT(range == whole.size());
    sums.push_back(own);
    sums.push_back(with_whole);
    world.show_life();
  }
  sums = world.all_reduce(
      world.everyone(), std::move(sums), comm::Op::Sum, TESSERA_HERE("contributions of samples"));
  std::vector<Contribution> out;
  for (std::size_t i = 1; i < sums.size(); i += 2) {
    const double share = sums[0] > 0 ? sums[i + 1] / sums[0] : 0.0;
    out.push_back({.norm = std::sqrt(sums[i]), .share = share});
  }
  return out;
}

}  // namespace tessera::engine
