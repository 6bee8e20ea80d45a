// SPDX-License-Identifier: Apache-2.0
#include "tessera/engine/adapters.h"

#include <set>
#include <utility>

#include <fmt/format.h>

#include "tessera/base/error.h"
#include "tessera/interop/peft/saved_adapter.h"
#include "tessera/models/adapter_choice.h"
#include "tessera/models/fingerprint.h"
#include "tessera/models/model_source.h"

namespace tessera::engine {
namespace {

const models::WeightMap& map_of(const OpenModel& model) {
  const json::Value* const family = model.shape.description.find("family");
  TESSERA_REQUIRE(family != nullptr && family->is_string(),
                  Unsupported,
                  fmt::format("{} is a program's own model, without names for its layers",
                              model.source.string()),
                  "use a model of a family");
  return models::families().get(family->as_string()).weight_map;
}

}  // namespace

void add_adapters(OpenModel& model, const std::vector<AdapterName>& adapters) {
  if (adapters.empty()) return;
  if (!model.weights) {
    model.weights = models::source_weights(models::open_model_source(model.source), model.shape);
  }
  const models::WeightMap& map = map_of(model);
  std::set<std::string> names;
  std::vector<models::NamedAdapter> found;
  for (const AdapterName& adapter : adapters) {
    TESSERA_REQUIRE(names.insert(adapter.name).second,
                    Config,
                    fmt::format("two adapters are called {}", adapter.name),
                    "give one another name: NAME=PATH");
    const interop::SavedAdapter saved = interop::open_saved_adapter(adapter.path);
    TESSERA_REQUIRE(!saved.base.empty(),
                    Unsupported,
                    fmt::format("{} holds an adapter together with its own base, which began from "
                                "the seed",
                                adapter.path.string()),
                    "use it without --adapter, as the model");
    TESSERA_REQUIRE(saved.fingerprint.empty() ||
                        saved.fingerprint == models::fingerprint_of(model.shape, model.weights),
                    Format,
                    fmt::format("{} was trained on another model than {}: on {}",
                                adapter.path.string(),
                                model.source.string(),
                                saved.base),
                    "name that one as the base");
    models::NamedAdapter one{.name = adapter.name,
                             .adapter = models::find_adapter(saved.options, model.shape, map),
                             .weights = {}};
    one.weights = saved.weights(one.adapter, map);
    found.push_back(std::move(one));
  }
  model.weights = models::weights_with_adapters(found, std::move(model.weights));
  model.shape.model = models::with_adapters(model.shape.model, found);
}

}  // namespace tessera::engine
