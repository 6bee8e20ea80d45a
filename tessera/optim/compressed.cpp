// SPDX-License-Identifier: Apache-2.0
#include "tessera/optim/compressed.h"

#include <array>
#include <limits>

#include "tessera/optim/params.h"

namespace tessera::optim {
namespace {

constexpr auto kExchangeBackends = std::to_array<config::Named<SignOptions::Backend>>(
    {{SignOptions::Backend::Nccl, "nccl"},
     {SignOptions::Backend::Mpi, "mpi"},
     {SignOptions::Backend::Compressed, "compressed"},
     {SignOptions::Backend::Hccl, "hccl"}});

}  // namespace

void SignOptions::describe(config::Fields& f) {
  describe_moments(f, lr, betas, eps);
  f.field("weight_decay", weight_decay, {.text = "Weight decay.", .min = 0});
  f.field("cuda_aware",
          cuda_aware,
          {.text = "Selects how DeepSpeed moves data between GPUs; no effect here."});
  f.choice("comm_backend_name",
           comm_backend_name,
           kExchangeBackends,
           {.text = "Selects the library that DeepSpeed uses for the exchange; no effect here."});
  f.field("bias_correction",
          bias_correction,
          {.text = "No effect: as in DeepSpeed, these rules never apply bias correction."});
}

void SignOptions::check(const json::Value& params, config::Problems& problems) {
  check_betas(betas, {0.9, 0.999}, params, problems);
}

void hold_unseen(float* exp_avg_sq, std::int64_t numel) {
  for (std::int64_t i = 0; i < numel; ++i) {
    if (exp_avg_sq[i] == 0.0F) exp_avg_sq[i] = std::numeric_limits<float>::infinity();
  }
}

}  // namespace tessera::optim
