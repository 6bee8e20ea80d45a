// SPDX-License-Identifier: Apache-2.0
#include "tessera/optim/params.h"

#include <utility>

#include <fmt/format.h>

namespace tessera::optim {

json::Value without_max_grad_norm(const json::Value& params, config::Problems& problems) {
  json::Value out = params;
  if (!params.is_object()) return out;
  std::erase_if(out.members(), [&](const json::Value::Member& member) {
    if (member.first != "max_grad_norm") return false;
    problems.add(member.second.key_place,
                 member.first,
                 "clipping is not a parameter of the optimizer",
                 "move it to the top: \"gradient_clipping\": " + member.second.dump());
    return true;
  });
  return out;
}

void describe_moments(config::Fields& f, double& lr, std::vector<double>& betas, double& eps) {
  f.field("lr", lr, {.text = "Learning rate before the schedule is applied.", .min = 0});
  f.field("betas",
          betas,
          {.text = "Decay rates of the running averages of the gradient and of its square.",
           .min = 0,
           .max = 1});
  f.field("eps", eps, {.text = "Added to the denominator for numerical stability.", .min = 0});
}

void ConstructorOptions::describe(config::Fields& f) {
  f.field(
      "set_grad_none",
      set_grad_none,
      {.text =
           "Selects whether DeepSpeed frees or zeroes gradients after an update; no effect here."});
  f.field(
      "fp32_optimizer_states",
      fp32_optimizer_states,
      {.text =
           "Must be true: optimizer states are fp32 unless bf16.bf16_optimizer_states is set."});
  f.field("amsgrad",
          amsgrad,
          {.text = "Must be false: the AMSGrad variant (Reddi et al. 2018) is not supported."});
}

void ConstructorOptions::check(const json::Value& params, config::Problems& problems) const {
  if (amsgrad) {
    problems.add(place_of(params, "amsgrad"),
                 "amsgrad",
                 "not built yet: true (DeepSpeed's own kernels reject it as well)",
                 "set it to false, or remove it");
  }
  if (!fp32_optimizer_states) {
    problems.add(
        place_of(params, "fp32_optimizer_states"),
        "fp32_optimizer_states",
        "false is not supported here: the dtype of optimizer states is an option of the run",
        "remove it; bf16.bf16_master_weights_and_grads and bf16.bf16_optimizer_states keep "
        "state in 16 bits");
  }
}

bool is_given(const json::Value& params, std::string_view key) {
  const json::Value* value = params.is_object() ? params.find(key) : nullptr;
  return value != nullptr && !value->is_null();
}

json::Place place_of(const json::Value& params, std::string_view key) {
  const json::Value* value = params.is_object() ? params.find(key) : nullptr;
  return value == nullptr ? params.place : value->place;
}

void check_betas(std::vector<double>& betas,
                 std::vector<double> fallback,
                 const json::Value& params,
                 config::Problems& problems,
                 std::string_view key) {
  bool fits = betas.size() == 2;
  for (const double beta : betas)
    fits = fits && beta < 1.0;
  if (fits) return;
  problems.add(
      place_of(params, key),
      std::string(key),
      "expected two numbers, each below 1",
      fmt::format("\"{}\": [{}, {}]", key, text::number(fallback[0]), text::number(fallback[1])));
  betas = std::move(fallback);
}

void check_below_one(double& share,
                     std::string_view key,
                     const json::Value& params,
                     config::Problems& problems) {
  if (share < 1.0) return;
  problems.add(place_of(params, key),
               std::string(key),
               "expected a number below 1, found " + text::number(share));
  share = 0.0;
}

}  // namespace tessera::optim
