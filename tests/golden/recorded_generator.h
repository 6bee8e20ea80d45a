// SPDX-License-Identifier: Apache-2.0
// Generators of text with recorded models.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "golden/golden.h"
#include "golden/hf_models.h"
#include "support/model_runner.h"

#include "tessera/engine/generate.h"
#include "tessera/interop/weights_of.h"
#include "tessera/models/family.h"
#include "tessera/parallel/executor.h"
#include "tessera/text/tokenizer.h"

namespace tessera::golden {

inline std::vector<std::int32_t> ids_of(const json::Value& list) {
  std::vector<std::int32_t> out;
  for (const json::Value& id : list.items())
    out.push_back(static_cast<std::int32_t>(id.as_integer().value()));
  return out;
}

/// A tokenizer of ids without text; no id ends a text.
class Ids final : public text::Tokenizer {
 public:
  explicit Ids(std::int64_t size) : size_(size) {}
  [[nodiscard]] std::string name() const override { return "ids"; }
  [[nodiscard]] std::int64_t size() const override { return size_; }
  [[nodiscard]] std::int32_t end_of_text() const override {
    return static_cast<std::int32_t>(size_);
  }
  void encode(std::string_view /*text*/,
              std::vector<std::int32_t>& /*out*/,
              bool /*special*/) const override {}
  [[nodiscard]] std::string_view bytes_of(std::int32_t /*id*/) const override { return {}; }
  [[nodiscard]] std::string fingerprint() const override { return "ids"; }

 private:
  std::int64_t size_;
};

/// The model of a folder, on one rank or on those of `world`. Must not be moved.
struct RecordedGenerator {
  explicit RecordedGenerator(const fs::path& folder,
                             comm::World* world = nullptr,
                             nn::TensorMode tensor = nn::TensorMode::OneD)
      : name(folder.filename().string()),
        config(read_json(folder / "config.json")),
        resolved(resolved_from_hf(config)),
        runner(resolved.model, DType::F32, world, {}, tensor),
        executor(runner.instance(), {}, {}, nullptr),
        tokenizer(resolved.vocab_size),
        generator(executor, tokenizer, resolved) {
    const models::WeightSource source = interop::weights_from_hf(
        folder, models::families().get(models::family_of_hf(config)), resolved);
    runner.fill([&](const ParamInfo& info, const at::Tensor& out) {
      source(info, 0, info.numel(), out.data_ptr<float>());
    });
  }
  RecordedGenerator(const RecordedGenerator&) = delete;
  RecordedGenerator& operator=(const RecordedGenerator&) = delete;

  std::string name;  ///< of the folder
  json::Value config;
  models::Resolved resolved;
  test::ModelRunner runner;
  parallel::Executor executor;
  Ids tokenizer;
  engine::Generator generator;
};

}  // namespace tessera::golden
