// SPDX-License-Identifier: Apache-2.0
// Measures forward and backward of one layer of experts, for run_moe.sh.
//
//   experts_bench [--experts 8] [--top-k 2] [--hidden 512] [--ffn 1024] [--tokens 1024]
//     [--dtype fp32|bf16] [--threads 1] [--runs 5]
//
// Prints one JSON line: ms (the shortest run, processor time of all threads divided by their
// number, because other programs may use the machine) and gflops (of the products).
#include <algorithm>
#include <cstdio>
#include <ctime>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include <fmt/format.h>

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <torch/csrc/autograd/autograd.h>

#include "tessera/models/feed_forward.h"

namespace {

using namespace tessera;

double processor_seconds() {
  timespec now{};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

struct Layer {
  Layer(const models::ExpertsSpec& spec, at::ScalarType dtype)
      : feed_forward(models::make_feed_forward(spec)), params("layer") {
    feed_forward->declare(params);
    for (const auto& param : params.list()) {
      const Shape shape = param->info().shape;
      param->attach(at::randn(shape).mul(0.02).to(dtype).set_requires_grad(true));
      gradients.push_back(at::empty(shape, at::kFloat));
    }
  }
  /// One forward and backward pass.
  void run(const at::Tensor& x) {
    for (std::size_t i = 0; i < gradients.size(); ++i)
      params.list()[i]->grad().open(gradients[i]);
    nn::StepContext context(nn::Mode::Train, 1);
    context.block_name = "layer";
    nn::Batch batch;
    batch.sample_ids = {0};
    context.batch = &batch;
    std::vector<nn::Term> terms;
    const at::Tensor y = (*feed_forward)(x, context, terms);
    std::vector<at::Tensor> inputs = {x};
    for (const auto& param : params.list())
      inputs.push_back(param->tensor());
    (void)torch::autograd::grad(
        {y}, inputs, {at::ones_like(y)}, std::nullopt, /*create_graph=*/false, true);
    for (const auto& param : params.list())
      param->grad().close();
  }

  std::unique_ptr<models::FeedForward> feed_forward;
  nn::Params params;
  std::vector<at::Tensor> gradients;
};

}  // namespace

int main(int argc, char** argv) {
  std::map<std::string, std::string> given;
  for (int i = 1; i + 1 < argc; i += 2)
    given[argv[i]] = argv[i + 1];
  const auto number = [&](const char* name, std::int64_t otherwise) {
    const auto at = given.find(name);
    return at == given.end() ? otherwise : std::stoll(at->second);
  };
  const bool bf16 = given["--dtype"] == "bf16";
  const std::int64_t tokens = number("--tokens", 1024), threads = number("--threads", 1);
  at::set_num_threads(static_cast<int>(threads));
  models::ExpertsSpec spec = {.hidden_size = number("--hidden", 512),
                              .ffn_hidden_size = number("--ffn", 1024),
                              .num_experts = number("--experts", 8)};
  spec.router = {.top_k = number("--top-k", 2), .normalize = true};
  const at::ScalarType dtype = bf16 ? at::kBFloat16 : at::kFloat;
  Layer layer(spec, dtype);
  const at::Tensor x = at::randn({1, tokens, spec.hidden_size}).to(dtype).set_requires_grad(true);
  double best = 1e9;
  for (std::int64_t i = 0; i < number("--runs", 5); ++i) {
    const double start = processor_seconds();
    layer.run(x);
    best = std::min(best, (processor_seconds() - start) / static_cast<double>(threads));
  }
  const double flops = 18.0 * static_cast<double>(tokens * spec.router.top_k * spec.hidden_size *
                                                  spec.ffn_hidden_size);
  std::printf("{\"ms\": %.3f, \"gflops\": %.1f}\n", 1e3 * best, flops / best / 1e9);
  return 0;
}
