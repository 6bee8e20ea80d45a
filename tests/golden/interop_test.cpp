// SPDX-License-Identifier: Apache-2.0
// Files that torch and DeepSpeed wrote: every byte is compared with the recorded contents, and
// trainings continue from them.
#include <array>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "golden/golden.h"
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <ATen/Parallel.h>

#include "tessera/base/error.h"
#include "tessera/checkpoint/safetensors.h"
#include "tessera/comm/world.h"
#include "tessera/engine/engine.h"
#include "tessera/engine/launch.h"
#include "tessera/interop/foreign.h"
#include "tessera/interop/foreign_training.h"
#include "tessera/interop/weights.h"
#include "tessera/planner/course.h"
#include "tessera/planner/make_plan.h"
#include "tessera/planner/plan.h"
#include "tessera/planner/with_data.h"

namespace tessera {
namespace {

namespace fs = std::filesystem;
using interop::Weight;

std::map<std::string, Weight> by_name(const std::vector<Weight>& weights) {
  std::map<std::string, Weight> out;
  for (const Weight& weight : weights)
    out.emplace(weight.name, weight);
  return out;
}

/// `ours` finds the tensor for a recorded name; it returns nullptr where the record is of something
/// else.
template <class Find>
int compare(const fs::path& folder, Find ours) {
  const checkpoint::SafetensorsFile expected(folder / "expected.safetensors");
  int count = 0;
  for (const auto& entry : expected.entries()) {
    const Weight* weight = ours(entry.name);
    if (weight == nullptr) {
      ADD_FAILURE() << "nothing for " << entry.name;
      continue;
    }
    std::vector<std::byte> bytes(weight->bytes());
    weight->copy(0, weight->numel(), bytes.data());
    EXPECT_EQ(weight->dtype, entry.dtype) << entry.name;
    EXPECT_EQ(weight->shape, entry.shape) << entry.name;
    EXPECT_TRUE(std::ranges::equal(bytes, expected.bytes(entry))) << entry.name;
    ++count;
  }
  return count;
}

const Weight* find(const std::map<std::string, Weight>& weights, const std::string& name) {
  const auto it = weights.find(name);
  return it == weights.end() ? nullptr : &it->second;
}

TEST(GoldenInterop, PytorchModelBinHoldsTheParameters) {
  int files = 0;
  for (const fs::path& folder : golden::cases("interop")) {
    if (!fs::exists(folder / "pytorch_model.bin")) continue;
    SCOPED_TRACE(folder.filename().string());
    const auto weights = by_name(interop::open_weights(folder));

    EXPECT_GT(compare(folder, [&](const std::string& name) { return find(weights, name); }), 0);
    ++files;
  }
  EXPECT_GT(files, 0);
}

/// Weights in a training loop's file of a kind, "model_" or "optimizer_".
std::map<std::string, Weight> loop_file(const fs::path& folder, const std::string& kind) {
  std::map<std::string, Weight> out;
  if (!fs::is_directory(folder)) return out;
  for (const auto& entry : fs::directory_iterator(folder)) {
    if (entry.path().filename().string().starts_with(kind))
      out = by_name(interop::open_weight_file(entry.path()));
  }
  return out;
}

TEST(GoldenInterop, FilesOfAPlainTrainingLoopHoldParametersAndMoments) {
  int loops = 0;
  for (const fs::path& folder : golden::cases("interop")) {
    const auto state = loop_file(folder, "optimizer_");
    if (state.empty()) continue;
    SCOPED_TRACE(folder.string());
    const auto model = loop_file(folder, "model_");
    const json::Value record = golden::read_json(folder / "case.json");
    std::map<std::string, std::string> number;
    for (const json::Value& name : golden::at(record, "parameter_order").items())
      number.emplace(name.as_string(), std::to_string(number.size()));

    const int compared = compare(folder, [&](const std::string& name) {
      const std::size_t dot = name.find('.');
      const std::string kind = name.substr(0, dot), parameter = name.substr(dot + 1);
      if (kind == "param") return find(model, parameter);
      return find(state, "state." + number.at(parameter) + "." + kind);
    });

    EXPECT_EQ(compared, static_cast<int>(3 * number.size()));
    ++loops;
  }
  EXPECT_GT(loops, 0);
}

std::vector<fs::path> trainings() {
  std::vector<fs::path> out;
  for (const fs::path& folder : golden::cases("interop")) {
    if (fs::exists(folder / "case.json")) out.push_back(folder);
  }
  EXPECT_FALSE(out.empty());
  return out;
}

bool of_deepspeed(const fs::path& folder) {
  return fs::exists(folder / "latest");
}

/// The recorded shape, with all steps.
std::vector<std::int64_t> recorded_shape() {
  const checkpoint::SafetensorsFile file(golden::folder() / "interop" / "inputs.safetensors");
  return file.find("input_ids")->shape;
}
std::int64_t recorded_samples() {
  const auto shape = recorded_shape();
  std::int64_t samples = 1;
  for (std::size_t d = 0; d + 1 < shape.size(); ++d)
    samples *= shape[d];
  return samples;
}
/// The step of the checkpoint, from the name of its tag or file.
std::int64_t step_of(const fs::path& folder) {
  std::string name = of_deepspeed(folder) ? golden::text(folder / "latest") : "";
  for (const auto& entry : fs::directory_iterator(folder)) {
    const std::string file = entry.path().stem().string();
    if (name.empty() && file.starts_with("model_")) name = file;
  }
  return std::stoll(name.substr(name.find_first_of("0123456789")));
}
std::vector<double> losses_of(const fs::path& folder) {
  return golden::numbers(golden::at(golden::read_json(folder / "case.json"), "losses"));
}
/// Samples of a step.
std::int64_t batch_of(const fs::path& folder) {
  return recorded_samples() / static_cast<std::int64_t>(losses_of(folder).size());
}
bool in_bf16(const fs::path& folder) {
  const json::Value record = golden::read_json(folder / "case.json");
  const json::Value* enabled = interop::at_path(record, "config.bf16.enabled");
  return enabled != nullptr && enabled->as_bool();
}

TEST(GoldenInterop, DeepSpeedsCheckpointsHoldMastersAndMoments) {
  for (const fs::path& folder : trainings()) {
    if (!of_deepspeed(folder)) continue;
    SCOPED_TRACE(folder.filename().string());
    const interop::Foreign opened = *interop::open_foreign(folder);
    const checkpoint::SafetensorsFile expected(folder / "expected.safetensors");

    std::size_t compared = 0;
    for (const auto& entry : expected.entries()) {
      const std::size_t dot = entry.name.find('.');
      const std::string kind = entry.name.substr(0, dot), name = entry.name.substr(dot + 1);
      const auto& tensors = kind == "fp32" ? opened.weights : opened.state.at(kind);
      for (const auto& tensor : tensors) {
        const bool alias = std::ranges::count(tensor.aliases, name) > 0;  // a tied head
        if (tensor.name != name && !alias) continue;
        std::vector<std::byte> bytes(tensor.bytes());
        tensor.read(0, static_cast<std::int64_t>(bytes.size() / 4), bytes.data());
        EXPECT_EQ(tensor.dtype, entry.dtype) << entry.name;
        EXPECT_EQ(tensor.shape, entry.shape) << entry.name;
        EXPECT_TRUE(std::ranges::equal(bytes, expected.bytes(entry))) << entry.name;
        ++compared;
      }
    }

    EXPECT_EQ(compared, expected.entries().size());
    EXPECT_EQ(opened.step, step_of(folder));
    EXPECT_EQ(opened.samples, step_of(folder) * batch_of(folder));
  }
}

/// The recorded batches, one after the other; labels are the inputs, shifted.
class Recorded final : public data::TokenDataset {
 public:
  explicit Recorded(const fs::path& path) {
    const checkpoint::SafetensorsFile file(path);
    const auto* ids = file.find("input_ids");
    length_ = ids->shape.back();
    ids_.resize(file.bytes(*ids).size() / sizeof(std::int64_t));
    std::memcpy(ids_.data(), file.bytes(*ids).data(), file.bytes(*ids).size());
  }
  [[nodiscard]] std::int64_t size() const override {
    return static_cast<std::int64_t>(ids_.size()) / length_;
  }
  [[nodiscard]] std::int64_t length() const override { return length_ - 1; }
  bool get(std::int64_t index,
           std::int64_t* input_ids,
           std::int64_t* labels,
           std::int64_t* mask) const override {
    for (std::int64_t t = 0; t + 1 < length_; ++t) {
      input_ids[t] = ids_[static_cast<std::size_t>(index * length_ + t)];
      labels[t] = ids_[static_cast<std::size_t>(index * length_ + t + 1)];
      mask[t] = 1;
    }
    return false;
  }

 private:
  std::vector<std::int64_t> ids_;
  std::int64_t length_ = 0;
};

struct Spread {
  int ranks, stage, micro, accumulation;
};

planner::Plan plan_of(const fs::path& folder, const Spread& spread) {
  const json::Value record = golden::read_json(folder / "case.json");
  json::Value config;
  if (of_deepspeed(folder)) {
    config = golden::at(record, "config");
  } else {
    config = json::Value::object({{"optimizer", json::parse(R"({"type": "AdamW"})", "case")}});
    config["optimizer"]["params"]["lr"] = golden::at(record, "lr");
    config["optimizer"]["params"]["weight_decay"] = golden::at(record, "weight_decay");
  }
  config["optimizer"]["decay_all"] = json::Value::boolean(true);
  config["train_micro_batch_size_per_gpu"] = json::Value::integer(spread.micro);
  config["gradient_accumulation_steps"] = json::Value::integer(spread.accumulation);
  config["zero_optimization"]["stage"] = json::Value::integer(spread.stage);
  config["data"] = json::parse(R"({"train": "recorded.txt", "shuffle": false})", "case");
  config["data"]["sequence_length"] = json::Value::integer(recorded_shape().back() - 1);
  config["trainer"]["max_steps"] =
      json::Value::integer(static_cast<std::int64_t>(losses_of(folder).size()));
  config["run"] = json::parse(R"({"threads_per_rank": 1, "dir": "unused"})", "case");
  const json::Value shape = golden::read_json(folder / "config.json");
  const models::ModelOptions options = models::options_from_hf(shape);
  config::Problems problems;
  const models::Resolved resolved =
      models::resolve(options, *options->vocab_size, std::nullopt, problems, {});
  problems.raise();
  return planner::make_plan(config, spread.ranks, "case.json", resolved.model);
}

std::vector<double> next_losses(const fs::path& folder, const Spread& spread) {
  engine::prepare_process(1);
  const planner::Plan made = plan_of(folder, spread);
  const auto data = std::make_shared<data::Datasets>();
  data->train = std::make_unique<Recorded>(golden::folder() / "interop" / "inputs.safetensors");
  const planner::PlanWithData plan = planner::with_data(made, *data);
  std::vector<double> losses;
  comm::run_threads(plan.mesh(), [&](comm::World& world) {
    at::set_num_threads(1);
    memory::Ledger ledger;
    const memory::ScopedLedger scoped(ledger);
    engine::Engine engine(plan, world, data);
    engine.load(interop::open_training(folder, plan));
    std::vector<double> mine;
    while (engine.step() < plan.course().max_steps)
      mine.push_back(engine.train_step().loss);
    engine.finish();
    if (world.is_leader()) losses = mine;
  });
  return losses;
}

// Sums in another order; in bf16 also roundings in other places.
constexpr double kFp32 = 1e-5, kBf16 = 2e-3;

TEST(GoldenInterop, TrainingContinuesAsItWouldHaveOnAnyRanksInAnyStage) {
  for (const fs::path& folder : trainings()) {
    const std::vector<double> recorded = losses_of(folder);
    const auto step = static_cast<std::size_t>(step_of(folder));
    const int batch = static_cast<int>(batch_of(folder));
    const double bound = in_bf16(folder) ? kBf16 : kFp32;
    ASSERT_LT(step, recorded.size());
    for (const auto& [ranks, stage, parts] : std::vector<std::array<int, 3>>{
             {1, 0, 1}, {1, 2, 2}, {2, 1, 1}, {2, 2, 2}, {2, 3, 1}, {4, 0, 1}, {4, 3, 1}}) {
      SCOPED_TRACE(fmt::format("{}: {} ranks, stage {}", folder.string(), ranks, stage));
      if (batch % (ranks * parts) != 0) continue;
      const std::vector<double> losses =
          next_losses(folder, {ranks, stage, batch / ranks / parts, parts});

      ASSERT_EQ(losses.size(), recorded.size() - step);
      for (std::size_t i = 0; i < losses.size(); ++i)
        EXPECT_NEAR(losses[i], recorded[step + i], bound * recorded[step + i]) << i;
    }
  }
}

}  // namespace
}  // namespace tessera
