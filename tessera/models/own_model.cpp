// SPDX-License-Identifier: Apache-2.0
#include "tessera/models/own_model.h"

#include <utility>

#include "tessera/config/json.h"

namespace tessera::models {

Resolved describe_own(const nn::Model& model, std::int64_t tokens) {
  Resolved out;
  out.model = model;
  nn::declare_all(out.model);
  out.tokenizer_size = out.vocab_size = tokens;
  out.num_layers = static_cast<std::int64_t>(model.blocks.size());
  out.description = json::Value::object();
  for (const auto& info : nn::parameters_of(out.model)) {
    out.num_parameters += info->numel();
    json::Value shape = json::Value::array({});
    for (const std::int64_t size : info->shape)
      shape.items().push_back(json::Value::integer(size));
    out.description[info->name] = std::move(shape);
  }
  return out;
}

}  // namespace tessera::models
