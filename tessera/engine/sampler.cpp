// SPDX-License-Identifier: Apache-2.0
#include "tessera/engine/sampler.h"

#include <cstdint>
#include <string_view>

#include "tessera/engine/generate.h"
#include "tessera/models/family.h"
#include "tessera/planner/plan.h"
#include "tessera/planner/values.h"
#include "tessera/tasks/eval_options.h"
#include "tessera/text/tokenizer.h"

namespace tessera::engine {

std::string Sampler::sample() {
  return model_.with_weights([&] { return text(); });
}

std::string Sampler::text() {
  std::string text;
  if (model_.generates()) {
    const comm::ActivityScope writes(model_.world(), Activity::Generate);
    const tasks::EvalOptions& options = planner::eval_options_of(plan_);
    Generator generator(model_.executor(), *planner::tokenizer_of(plan_), planner::model_of(plan_));
    GenerateOptions how;
    how.max_new_tokens = options.max_new_tokens;
    how.sampler = {.temperature = options.temperature, .top_k = options.top_k, .top_p = 1.0};
    how.seed = static_cast<std::uint64_t>(planner::seed_of(plan_));
    text = options.prompt;
    generator.run(options.prompt, how, [&](std::string_view piece) {
      text += piece;
      model_.world().show_life();
    });
  }
  comm::World& world = model_.world();
  world.barrier(TESSERA_HERE("sample text"));
  return world.is_leader() ? text : std::string();
}

}  // namespace tessera::engine
