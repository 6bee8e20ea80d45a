// SPDX-License-Identifier: Apache-2.0
// labels: slow
// ONNX files of the recorded models: onnxruntime computes from them what the model itself does, for
// other numbers of samples and tokens than those that the file was made from.
#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include "golden/golden.h"
#include "golden/hf_models.h"
#include "support/model_runner.h"
#include "support/source_dir.h"
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <ATen/ATen.h>

#include "tessera/base/error.h"
#include "tessera/base/files.h"
#include "tessera/checkpoint/safetensors.h"
#include "tessera/config/fields.h"
#include "tessera/engine/onnx_of.h"
#include "tessera/interop/weights_of.h"
#include "tessera/models/family.h"
#include "tessera/parallel/executor.h"

namespace tessera {
namespace {

namespace fs = std::filesystem;

// Tolerance of two float32 programs that add in different orders.
constexpr const char* kBound = "1e-4";

/// A recorded model, loaded.
struct Case {
  models::Resolved resolved;
  test::ModelRunner runner;
};

/// The recorded folders whose family and options this program has.
std::vector<fs::path> known_models() {
  std::vector<fs::path> out;
  for (const fs::path& folder : golden::cases("models")) {
    try {
      (void)models::options_from_hf(golden::read_json(folder / "config.json"));
      out.push_back(folder);
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), Error::Kind::Unsupported) << folder;
    }
  }
  return out;
}

Case open(const fs::path& folder) {
  const json::Value config = golden::read_json(folder / "config.json");
  models::Resolved resolved = golden::resolved_from_hf(config);
  test::ModelRunner runner(resolved.model);
  const models::WeightSource source = interop::weights_from_hf(
      folder, models::families().get(models::family_of_hf(config)), resolved);
  runner.fill([&](const ParamInfo& info, const at::Tensor& out) {
    source(info, 0, info.numel(), out.data_ptr<float>());
  });
  return {std::move(resolved), std::move(runner)};
}

/// Inputs of a number of samples and tokens, with padding at the ends of some samples.
nn::Batch inputs_of(const models::Resolved& model, std::int64_t samples, std::int64_t tokens) {
  nn::Batch batch;
  for (std::int64_t sample = 0; sample < samples; ++sample)
    batch.sample_ids.push_back(sample);
  const models::TrunkOutput& trunk = model.trunk.output;
  if (trunk.modality == models::Modality::Images) {
    const std::int64_t side = *model.description.find("image_size")->as_integer();
    const std::int64_t channels = *model.description.find("num_channels")->as_integer();
    batch.set("pixel_values", at::randn({samples, channels, side, side}));
    return batch;
  }
  const auto ids = [&](std::int64_t length) {
    return at::randint(model.vocab_size, {samples, length}, at::kLong);
  };
  const at::Tensor mask = at::ones({samples, tokens}, at::kLong);
  for (std::int64_t sample = 0; sample < samples; ++sample) {
    const std::int64_t padding = sample % std::min<std::int64_t>(tokens, 4);
    mask[sample].narrow(0, tokens - padding, padding).zero_();
  }
  batch.set("input_ids", ids(tokens));
  batch.set("attention_mask", mask);
  batch.set("token_type_ids", at::zeros({samples, tokens}, at::kLong));
  if (trunk.target) batch.set("decoder_input_ids", ids(tokens + 2));
  return batch;
}

/// Writes the inputs, and what the model itself computes of them.
void write_case(const fs::path& path, Case& one, const nn::Batch& batch) {
  nn::StepContext context(nn::Mode::Eval, 1);
  context.want_logits = true;
  const at::Tensor expected =
      one.runner.infer(batch, context).outputs.at("logits").to(at::kFloat).contiguous();
  std::vector<checkpoint::TensorBytes> tensors;
  const auto add = [&](const std::string& name, const at::Tensor& tensor) {
    tensors.push_back({name,
                       tensor.scalar_type() == at::kLong ? DType::I64 : DType::F32,
                       tensor.sizes().vec(),
                       {static_cast<const std::byte*>(tensor.const_data_ptr()), tensor.nbytes()}});
  };
  add("expected", expected);
  for (const auto& [name, tensor] : batch.tensors())
    add(name, tensor);
  checkpoint::write_safetensors(path, tensors, {});
}

/// The interpreter that runs onnxruntime; empty: none has it.
std::string python() {
  const char* const chosen = std::getenv("PYTHON");
  std::string python = chosen != nullptr ? chosen : "python3";
  if (std::system((python + " -c 'import onnxruntime' 2>/dev/null").c_str()) == 0) return python;
  return "";
}
constexpr const char* kNoRuntime =
    "python3 has no onnxruntime; set PYTHON to an interpreter that has its wheel";

/// Files of several models, which onnxruntime runs at once.
class Comparison {
 public:
  void add(const std::string& name, Case& one) {
    SCOPED_TRACE(name);
    parallel::Executor executor(one.runner.instance(), {});
    const fs::path place = box_.path() / name, beside = place / "beside";
    fs::create_directories(beside);
    try {
      const interop::OnnxGraph graph = engine::onnx_of(one.resolved, executor);
      graph.write(place / "model.onnx", [](std::uint64_t) {});
      // Weights in a second file, as those of large models.
      const std::string data = "model.onnx.data";
      graph.write_beside(beside / "model.onnx", beside / data, data, [](std::uint64_t) {});
      EXPECT_LT(fs::file_size(beside / "model.onnx"), fs::file_size(place / "model.onnx"));
    } catch (const Error& error) {
      ADD_FAILURE() << error.what();
      return;
    }
    for (const auto& [samples, tokens] : {std::pair(1, 1), std::pair(1, 9), std::pair(4, 14)}) {
      const std::string file = fmt::format("{}_{}.safetensors", samples, tokens);
      write_case(place / file, one, inputs_of(one.resolved, samples, tokens));
      fs::copy_file(place / file, beside / file);
    }
    folders_ += " " + place.string() + " " + beside.string();
  }

  void run(const std::string& python) const {
    const std::string script = test::source_dir().string() + "/tests/golden/onnx_compare.py ";
    EXPECT_EQ(std::system((python + " " + script + kBound + folders_).c_str()), 0);
  }

 private:
  files::TempDir box_;
  std::string folders_;
};

TEST(GoldenOnnx, ComputesWhatTheModelDoesForOtherBatchesAndLengths) {
  const std::string interpreter = python();
  if (interpreter.empty()) GTEST_SKIP() << kNoRuntime;
  at::manual_seed(1);
  Comparison comparison;
  for (const fs::path& folder : known_models()) {
    Case one = open(folder);
    comparison.add(folder.filename().string(), one);
  }
  comparison.run(interpreter);
}

/// A small model with random weights and, if the family has a choice, its default objective.
Case random_model(const std::string& family) {
  json::Value written =
      json::parse(R"({"num_layers": 2, "hidden_size": 32, "num_heads": 4})", family);
  written["family"] = json::Value::string(family);
  if (family == "vit") {
    written["image_size"] = json::Value::integer(16);
    written["patch_size"] = json::Value::integer(4);
  }
  models::ModelOptions options;
  config::Problems problems;
  config::Origins origins;
  config::read(written, options, problems, origins);
  problems.raise();
  constexpr std::int64_t kVocabulary = 64, kPositions = 32;
  models::Resolved resolved = models::resolve(options, kVocabulary, kPositions, problems, origins);
  problems.raise();
  test::ModelRunner runner(resolved.model);
  runner.fill([](const ParamInfo& info, const at::Tensor& out) {
    const bool gain = info.matrix_shape.size() < 2 && info.name.ends_with("weight");
    out.normal_(gain ? 1.0 : 0.0, 0.1);
  });
  return {std::move(resolved), std::move(runner)};
}

TEST(GoldenOnnx, HasEveryFamily) {
  const std::string interpreter = python();
  if (interpreter.empty()) GTEST_SKIP() << kNoRuntime;
  at::manual_seed(2);
  Comparison comparison;
  for (const std::string& family : models::families().names()) {
    Case one = random_model(family);
    comparison.add(family, one);
  }
  comparison.run(interpreter);
}

}  // namespace
}  // namespace tessera
