// SPDX-License-Identifier: Apache-2.0
#include "tessera/nn/step_context.h"

#include <span>
#include <utility>

#include <ATen/core/grad_mode.h>
#include <torch/csrc/autograd/autograd.h>

#include "tessera/base/error.h"
#include "tessera/base/files.h"
#include "tessera/base/philox.h"
#include "tessera/comm/world.h"
#include "tessera/nn/autograd.h"
#include "tessera/nn/dropout_record.h"
#include "tessera/nn/flow_form.h"

namespace tessera::nn {

bool StepContext::splits_samples() const {
  return flow_form(*this).splits_samples();
}

ops::DropoutKey StepContext::dropout(std::string_view site, double p) const {
  ops::DropoutKey key;
  if (!training() || p <= 0.0) return key;
  TESSERA_ASSERT(batch != nullptr);
  DropoutRecord::add(block_name, site, p);
  const std::string place = block_name + "/" + std::string(site);
  key.p = p;
  key.key = mix64(mix64(seed_), files::xxh3(std::as_bytes(std::span(place))));
  key.sample_ids = batch->sample_ids;
  key.parts = parts_of_sample(*this);
  flow_form(*this).cut_dropout(key, *this);
  return key;
}

namespace {

using RegionFn = std::function<at::Tensor(const std::vector<at::Tensor>&)>;

/// Keeps the inputs of a region and runs it again in backward.
struct RegionNode : torch::autograd::Function<RegionNode> {
  static at::Tensor forward(detail::AutogradContext* node,
                            at::TensorList inputs,
                            const RegionFn& fn) {
    const std::vector<at::Tensor> in = inputs.vec();
    detail::save(node, in);
    detail::keep(node, fn);
    return fn(in);  // an autograd function's forward builds no graph
  }

  static detail::variable_list backward(detail::AutogradContext* node,
                                        const detail::variable_list& grads) {
    const at::AutoGradMode grad(true);
    std::vector<at::Tensor> in, wanted;
    for (const at::Tensor& saved : node->get_saved_variables()) {
      in.push_back(saved.detach());
      if (!node->needs_input_grad(in.size() - 1)) continue;
      in.back().set_requires_grad(true);
      wanted.push_back(in.back());
    }
    const at::Tensor out = detail::kept<RegionFn>(node)(in);
    const auto found = torch::autograd::grad({out},
                                             wanted,
                                             {grads[0]},
                                             /*retain_graph=*/std::nullopt,
                                             /*create_graph=*/false,
                                             /*allow_unused=*/true);
    detail::variable_list all(in.size() + 1);
    for (std::size_t i = 0, next = 0; i < in.size(); ++i) {
      if (in[i].requires_grad()) all[i] = found[next++];
    }
    return all;
  }
};

}  // namespace

at::Tensor StepContext::region(std::string_view /*name*/,
                               const RegionFn& fn,
                               const std::vector<at::Tensor>& inputs) {
  if (!recompute_regions_ || !training() || !at::GradMode::is_enabled()) return fn(inputs);
  return detail::apply<RegionNode>(at::TensorList(inputs), fn);
}

void StepContext::run_deferred() {
  const c10::NoGradGuard no_grad;  // as in backward
  for (const auto& work : std::exchange(deferred_, {}))
    work();
}

}  // namespace tessera::nn
