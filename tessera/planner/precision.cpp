// SPDX-License-Identifier: Apache-2.0
#include "tessera/planner/precision.h"

#include <string>
#include <utility>

#include <fmt/format.h>

#include "tessera/base/text.h"
#include "tessera/parallel/layout.h"
#include "tessera/planner/train_config.h"

namespace tessera::planner {
namespace {

void resolve_amp(const optim::AmpOptions& amp,
                 parallel::Layout& layout,
                 Recipe& recipe,
                 std::vector<std::string>& notes,
                 config::Problems& problems,
                 const config::Origins& origins) {
  const std::optional<optim::Fp16Options> scaling = optim::amp_scaling(amp, problems, origins);
  if (!scaling) {
    notes.emplace_back("amp.opt_level O0: everything is fp32");
    return;
  }
  layout.working = DType::F16;
  recipe.scaling = *scaling;
  notes.push_back(fmt::format(
      "amp.opt_level {}: weights and activations fp16; masters, moments, norms and sums are fp32 "
      "at every level",
      config::name_of(optim::kAmpLevels, amp.opt_level)));
}

}  // namespace

void resolve_precision(const TrainConfig& config,
                       parallel::Layout& layout,
                       Recipe& recipe,
                       std::vector<std::string>& notes,
                       config::Problems& problems,
                       const config::Origins& origins) {
  recipe.scaling_stage = origins.given("zero_optimization") ? layout.zero_stage : 1;
  optim::check_fp16(config.fp16, recipe.scaling_stage, "fp16", problems, origins, notes);
  layout.working = DType::F32;
  if (config.fp16.enabled) {
    layout.working = DType::F16;
    recipe.scaling = config.fp16;
    if (config.fp16.fp16_master_weights_and_grads) {
      layout.kept.masters = DType::F16;
      notes.emplace_back(
          "fp16.fp16_master_weights_and_grads: masters fp16; gradients are summed in fp32, since "
          "sums "
          "of fp16 overflow");
    }
  } else if (config.bf16.enabled) {
    layout.working = DType::BF16;
    if (config.bf16.bf16_master_weights_and_grads) layout.kept.masters = DType::BF16;
    if (config.bf16.bf16_optimizer_states) layout.kept.states = DType::BF16;
  } else if (config.amp.enabled) {
    resolve_amp(config.amp, layout, recipe, notes, problems, origins);
  } else if (config.torch_autocast.enabled) {
    const bool half = config.torch_autocast.dtype == DType::F16;
    layout.working = half ? DType::F16 : DType::BF16;
    recipe.scaling.enabled = half;
    notes.push_back(
        fmt::format("torch_autocast: as {}.enabled: weights and activations {}, masters fp32",
                    half ? "fp16" : "bf16",
                    half ? "fp16, the loss scaled" : "bf16"));
  }
}

std::string precision_text(const parallel::Layout& layout, const Recipe& recipe) {
  if (layout.working == DType::F32) return "fp32";
  if (layout.working == DType::BF16) {
    if (layout.kept.masters == DType::F32) return "bf16 with fp32 masters";
    return layout.kept.states == DType::F32 ? "bf16 without fp32 masters"
                                            : "bf16 without fp32 masters, moments bf16";
  }
  const optim::LossScaler scaler(recipe.scaling, recipe.scaling_stage);
  return fmt::format("fp16 {} fp32 masters, loss scale {} ({})",
                     layout.kept.masters == DType::F32 ? "with" : "without",
                     text::number(scaler.scale()),
                     scaler.dynamic() ? "dynamic" : "fixed");
}

}  // namespace tessera::planner
