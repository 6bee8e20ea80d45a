// SPDX-License-Identifier: Apache-2.0
// One parameter and the state that an optimizer rule keeps for it, updated according to the
// contract of optim::Rule: in one range, or in several as with shards.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <span>
#include <stdexcept>
#include <string>
#include <vector>

#include "tessera/optim/rule.h"

namespace tessera::test {

class DrivenParam {
 public:
  static constexpr std::int64_t kChunk = 1024;

  DrivenParam(const optim::Rule& rule, optim::ParamFacts facts, std::vector<float> weights)
      : rule_(rule), facts_(std::move(facts)), master_(std::move(weights)) {
    if (facts_.numel() != static_cast<std::int64_t>(master_.size())) {
      throw std::logic_error("facts and weights differ");
    }
    for (const optim::StateSpec& spec : rule_.state(facts_)) {
      const std::int64_t count = spec.extent == optim::Extent::Elements ? facts_.numel()
                                 : spec.extent == optim::Extent::Rows   ? facts_.rows
                                                                        : facts_.columns;
      states_.push_back({spec, std::vector<float>(static_cast<std::size_t>(count))});
    }
    norms_.resize(static_cast<std::size_t>(rule_.num_norms(facts_)));
  }

  /// The group settings that every view of this parameter has; set before update().
  bool decay = true;
  std::optional<double> lr_scale = {};
  std::optional<double> weight_decay = {};

  void keep_working_copy(DType dtype = DType::BF16) {
    working_.resize(master_.size());
    working_dtype_ = dtype;
  }
  /// Ranges begin at 0 and at each of `cuts`: multiples of 1024, ascending.
  void cut_at(std::vector<std::int64_t> cuts) { cuts_ = std::move(cuts); }

  void update(const std::vector<float>& grad, const optim::UpdateScalars& scalars) {
    std::vector<optim::ShardView> views = ranges(grad);
    const optim::Scope scope = rule_.scope(facts_);
    if (scope == optim::Scope::WholeTensor) direction_.resize(master_.size());
    if (scope != optim::Scope::Elementwise) prepare(views, scalars);
    if (scope == optim::Scope::WholeTensor) {
      rule_.transform({.direction = direction_.data(),
                       .state = states_of_owner(),
                       .facts = &facts_,
                       .norms = norms_},
                      scalars);
    }
    for (optim::ShardView& view : views) {
      view.norms = norms_;
      rule_.update(view, scalars);
    }
  }

  [[nodiscard]] const std::vector<float>& master() const { return master_; }
  [[nodiscard]] const std::vector<std::uint16_t>& working() const { return working_; }
  [[nodiscard]] const std::vector<double>& norms() const { return norms_; }
  [[nodiscard]] const std::vector<float>& direction() const { return direction_; }
  [[nodiscard]] const std::vector<float>* state(const std::string& name) const {
    for (const State& state : states_) {
      if (state.spec.name == name) return &state.values;
    }
    return nullptr;
  }
  /// All states one after the other.
  [[nodiscard]] std::vector<float> all_states() const {
    std::vector<float> out;
    for (const State& state : states_)
      out.insert(out.end(), state.values.begin(), state.values.end());
    return out;
  }

 private:
  struct State {
    optim::StateSpec spec;
    std::vector<float> values;
  };

  std::vector<optim::ShardView> ranges(const std::vector<float>& grad) {
    if (grad.size() != master_.size()) throw std::logic_error("a gradient of another size");
    std::vector<std::int64_t> bounds = {0};
    bounds.insert(bounds.end(), cuts_.begin(), cuts_.end());
    bounds.push_back(facts_.numel());
    std::vector<optim::ShardView> out;
    for (std::size_t i = 0; i + 1 < bounds.size(); ++i) {
      const std::int64_t at = bounds[i];
      if (at % kChunk != 0 || at >= bounds[i + 1]) throw std::logic_error("not a cut of shards");
      optim::ShardView view;
      view.master = master_.data() + at;
      view.grad = grad.data() + at;
      view.working = working_.empty() ? nullptr : working_.data() + at;
      view.working_dtype = working_dtype_;
      view.numel = bounds[i + 1] - at;
      view.decay = decay;
      view.lr_scale = lr_scale;
      view.weight_decay = weight_decay;
      view.facts = &facts_;
      for (State& state : states_) {
        if (state.spec.extent == optim::Extent::Elements) {
          view.state.push_back(state.values.data() + at);
        }
      }
      out.push_back(std::move(view));
    }
    return out;
  }

  /// The sums of all ranges, quantity by quantity in the order of the parameter's chunks.
  void prepare(std::vector<optim::ShardView>& views, const optim::UpdateScalars& scalars) {
    std::vector<std::vector<double>> sums(norms_.size());
    for (optim::ShardView& view : views) {
      if (!direction_.empty()) view.direction = direction_.data() + (view.master - master_.data());
      const auto chunks = static_cast<std::size_t>((view.numel + kChunk - 1) / kChunk);
      std::vector<double> of_range(sums.size() * chunks);
      rule_.prepare(view, scalars, of_range.data());
      for (std::size_t k = 0; k < sums.size(); ++k) {
        const auto first = of_range.begin() + static_cast<std::ptrdiff_t>(k * chunks);
        sums[k].insert(sums[k].end(), first, first + static_cast<std::ptrdiff_t>(chunks));
      }
    }
    for (std::size_t k = 0; k < sums.size(); ++k)
      norms_[k] = optim::gradient_norm(sums[k]);
  }

  std::vector<float*> states_of_owner() {
    std::vector<float*> out;
    for (State& state : states_) {
      if (state.spec.extent != optim::Extent::Elements) out.push_back(state.values.data());
    }
    return out;
  }

  const optim::Rule& rule_;
  optim::ParamFacts facts_;
  std::vector<float> master_, direction_;
  std::vector<std::uint16_t> working_;
  DType working_dtype_ = DType::BF16;
  std::vector<State> states_;
  std::vector<double> norms_;
  std::vector<std::int64_t> cuts_;
};

}  // namespace tessera::test
