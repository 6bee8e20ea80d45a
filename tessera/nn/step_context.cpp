// SPDX-License-Identifier: Apache-2.0
#include "tessera/nn/step_context.h"

#include <span>
#include <utility>

#include <c10/core/GradMode.h>

#include "tessera/base/error.h"
#include "tessera/base/files.h"
#include "tessera/base/philox.h"

namespace tessera::nn {

ops::DropoutKey StepContext::dropout(std::string_view site, double p) const {
  ops::DropoutKey key;
  if (!training() || p <= 0.0) return key;
  TESSERA_ASSERT(batch != nullptr);
  const std::string place = block_name + "/" + std::string(site);
  key.p = p;
  key.key = mix64(mix64(seed_), files::xxh3(std::as_bytes(std::span(place))));
  key.sample_ids = batch->sample_ids;
  return key;
}

at::Tensor StepContext::region(std::string_view /*name*/,
                               const std::function<at::Tensor(const std::vector<at::Tensor>&)>& fn,
                               const std::vector<at::Tensor>& inputs) {
  return fn(inputs);
}

void StepContext::run_deferred() {
  const c10::NoGradGuard no_grad;  // as inside of backward
  for (const auto& work : std::exchange(deferred_, {}))
    work();
}

}  // namespace tessera::nn
