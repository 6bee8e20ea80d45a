// SPDX-License-Identifier: Apache-2.0
#include "tessera/optim/compressed.h"

#include <limits>

#include "tessera/optim/params.h"

namespace tessera::optim {

void SignOptions::describe(config::Fields& f) {
  f.field("lr", lr, {.text = "Learning rate, before the schedule.", .min = 0});
  f.field("betas",
          betas,
          {.text = "Decay of the running means of the gradient and of its square.",
           .min = 0,
           .max = 1});
  f.field("eps", eps, {.text = "Added to the divisor.", .min = 0});
  f.field("weight_decay", weight_decay, {.text = "Decay of the weights.", .min = 0});
  f.field("cuda_aware",
          cuda_aware,
          {.text = "DeepSpeed's choice between two ways to move data of GPUs; there are none "
                   "here."});
  f.field("comm_backend_name",
          comm_backend_name,
          {.text = "DeepSpeed's choice of a library for the exchange; all give this one.",
           .choices = {"nccl", "mpi", "compressed", "hccl"}});
  f.field("bias_correction",
          bias_correction,
          {.text = "As in DeepSpeed, rules of this kind correct nothing, whatever it says."});
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
