// SPDX-License-Identifier: Apache-2.0
#include "tessera/engine/sampler.h"

#include <cstdint>
#include <string_view>

#include "tessera/engine/generate.h"

namespace tessera::engine {

std::string Sampler::sample() {
  return model_.with_weights([&] { return text(); });
}

std::string Sampler::text() {
  std::string text;
  if (model_.generates()) {
    const tasks::EvalOptions& options = plan_.config.eval;
    Generator generator(model_.executor(), *plan_.tokenizer, plan_.model);
    GenerateOptions how;
    how.max_new_tokens = options.max_new_tokens;
    how.sampler = {.temperature = options.temperature, .top_k = options.top_k, .top_p = 1.0};
    how.seed = static_cast<std::uint64_t>(plan_.config.trainer.seed);
    text = options.prompt;
    generator.run(options.prompt, how, [&](std::string_view piece) { text += piece; });
  }
  comm::World& world = model_.world();
  world.transport().barrier(world.everyone(), TESSERA_HERE("sample text"))->wait();
  return world.is_leader() ? text : std::string();
}

}  // namespace tessera::engine
