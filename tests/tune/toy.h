// SPDX-License-Identifier: Apache-2.0
// A small model whose layouts are searched in tests.
#pragma once

#include <cstdint>

#include "tessera/config/json.h"
#include "tessera/predict/described_machine.h"

namespace tessera::test {

inline json::Value gpt2(std::int64_t layers,
                        std::int64_t hidden,
                        std::int64_t heads,
                        std::int64_t length,
                        std::int64_t batch) {
  const auto integer = [](std::int64_t value) { return json::Value::integer(value); };
  json::Value out;
  json::Value& model = out["model"];
  model["family"] = json::Value::string("gpt2");
  model["num_layers"] = integer(layers);
  model["hidden_size"] = integer(hidden);
  model["num_heads"] = integer(heads);
  model["vocab_size"] = integer(50304);
  model["max_positions"] = integer(length);
  out["tokenizer"]["type"] = json::Value::string("byte");
  out["data"]["train"] = json::Value::string("text.txt");
  out["data"]["sequence_length"] = integer(length);
  out["trainer"]["max_steps"] = integer(100);
  out["bf16"]["enabled"] = json::Value::boolean(true);
  out["train_batch_size"] = integer(batch);
  return out;
}

}  // namespace tessera::test
