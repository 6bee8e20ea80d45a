// SPDX-License-Identifier: Apache-2.0
// Trains a model in this process, step by step, and lets it write. The face of the library
// (tessera/api.h) is all that this program includes; nothing is forked.
//
//   in_process [STEPS] [FOLDER]
#include <cstdio>
#include <filesystem>
#include <string>

#include "tessera/api.h"

namespace {

namespace api = tessera::api;

int train(const std::string& steps, const std::filesystem::path& folder) {
  const api::Plan plan = api::Plan(R"({
    "model": {"num_layers": 2, "hidden_size": 64, "num_heads": 4},
    "data": {"train": "examples/data/shakespeare.txt", "sequence_length": 32, "validation_fraction": 0.1},
    "train_batch_size": 8, "optimizer": {"params": {"lr": 3e-3}}})")
                             .with("trainer.max_steps=" + steps);
  api::Training training(plan);
  while (!training.done()) {
    const api::Step step = training.step();
    if (step.number % 10 == 0)
      std::printf("step %ld loss %.4f\n", static_cast<long>(step.number), step.loss);
  }
  std::printf("held-out loss %.4f\n", training.evaluate().loss);
  api::Model model(training.save(folder));
  std::printf("it writes: %s\n", model.generate("What is ", {.max_new_tokens = 20}).c_str());
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  try {
    return train(argc > 1 ? argv[1] : "50", argc > 2 ? argv[2] : "in_process_checkpoints");
  } catch (const tessera::Error& error) {
    std::fprintf(stderr, "error: %s\n", error.text().c_str());
    return exit_code(error.kind());
  }
}
