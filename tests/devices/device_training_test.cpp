// SPDX-License-Identifier: Apache-2.0
// labels: slow
// timeout: 600
// Trainings, generation and reinforcement learning on simulated GPUs give the bits of the CPU with
// the same kernels, and put all accesses of their streams into order.
#include <cmath>
#include <cstdlib>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "devices/device_world.h"
#include "devices/simulated_gpu.h"
#include "equivalence/family_rows.h"
#include "rlhf/support.h"
#include "support/train_runs.h"
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <ATen/Parallel.h>

#include "tessera/base/error.h"
#include "tessera/base/files.h"
#include "tessera/engine/batches.h"
#include "tessera/engine/generate.h"
#include "tessera/engine/open_model.h"

namespace tessera::test {
namespace {

/// The CPU runs the kernels of the simulated GPU in this program: "aten" unless another set is
/// given.
const bool kSameKernels = setenv("TESSERA_KERNELS", "aten", /*overwrite=*/0) == 0;

constexpr std::int64_t kSteps = 2;

using Keys = std::vector<std::pair<const char*, const char*>>;

TinyRun with(TinyRun run, const Keys& keys) {
  for (const auto& [key, value] : keys)
    run.set(key, value);
  return run;
}

void expect_near(const std::vector<double>& a, const std::vector<double>& b, double bound) {
  ASSERT_EQ(a.size(), b.size());
  for (std::size_t i = 0; i < a.size(); ++i)
    EXPECT_NEAR(a[i], b[i], bound * std::abs(b[i]));
}

/// Bits on a simulated GPU, which has the kernels of the CPU; `rounds`: some of them add in another
/// order. Those of a real GPU round differently too: a step of AdamW changes a weight by lr
/// whatever the size of its gradient, so that later losses differ by the effect of such steps on a
/// few gradients near zero.
void expect_alike(const Trace& gpu, const Trace& cpu, bool rounds = false) {
  if (!tests_real_gpu() && !rounds) return expect_same_bits(gpu, cpu);
  constexpr double kRounding = 1e-5, kOtherKernels = 2e-3;
  const double bound = tests_real_gpu() ? kOtherKernels : kRounding;
  expect_near(gpu.losses, cpu.losses, bound);
  expect_near(gpu.eval_losses, cpu.eval_losses, bound);
  if (!tests_real_gpu()) expect_near(gpu.grad_norms, cpu.grad_norms, bound);
  EXPECT_EQ(gpu.digest.size(), cpu.digest.size());
}

void expect_same_on_gpu(const TinyRun& run,
                        const Layout& layout,
                        std::int64_t steps = kSteps,
                        bool rounds = false) {
  ASSERT_TRUE(kSameKernels);
  (void)take_violations();
  TinyRun on_gpu = run;
  on_gpu.use_world(world_on_gpu);

  const Trace device = on_gpu.train(layout, steps), cpu = run.train(layout, steps);

  expect_alike(device, cpu, rounds);
  EXPECT_THAT(take_violations(), testing::IsEmpty());
}

// ---- every family and task

class Families : public ::testing::TestWithParam<FamilyRow> {};

TEST_P(Families, TrainAsOnTheCpu) {
  // Products of experts' rows are added by loops on the CPU, whatever its kernels (expert_rows.h).
  const bool experts = GetParam().model.find("\"moe\"") != std::string::npos;
  expect_same_on_gpu(run_of(GetParam()), {.ranks = 1, .stage = 0}, /*steps=*/1, experts);
}

INSTANTIATE_TEST_SUITE_P(GpuTraining,
                         Families,
                         ::testing::ValuesIn(family_rows()),
                         [](const auto& info) { return info.param.name; });

// ---- layouts and features

/// The plan is for a device, and the CPU that runs it too keeps everything where it computes.
const std::pair<const char*, const char*> kOnDevice = {"run.device", "\"simulated\""};
const std::pair<const char*, const char*> kStatesOnHost = {
    "zero_optimization.offload_optimizer.device", "\"cpu\""};
const std::pair<const char*, const char*> kWeightsOnHost = {
    "zero_optimization.offload_param.device", "\"cpu\""};
const std::pair<const char*, const char*> kGatherAll = {
    "zero_optimization.stage3_param_persistence_threshold", "0"};
const std::pair<const char*, const char*> kRecomputed = {
    "activation_checkpointing", R"({"granularity": "full", "offload": {"device": "cpu"}})"};
const std::pair<const char*, const char*> kStatesOnDisk = {
    "zero_optimization.offload_optimizer", R"({"device": "nvme", "nvme_path": "/tmp"})"};
const std::pair<const char*, const char*> kWeightsOnDisk = {
    "zero_optimization.offload_param", R"({"device": "nvme", "nvme_path": "/tmp"})"};
const std::pair<const char*, const char*> kInputsOnDisk = {
    "activation_checkpointing",
    R"({"granularity": "full", "offload": {"device": "nvme", "nvme_path": "/tmp"}})"};
const std::pair<const char*, const char*> kMoreLayers = {"model.num_layers", "4"};

struct Case {
  const char* name;
  Layout layout;
  Keys keys = {};
  const char* data = "";  ///< "padded" or "documents"
  /// The simulated GPU copies views before it multiplies them, so that a product may take them in
  /// another order than on the CPU.
  bool rounds = false;
};

const char* const kBf16 = R"({"enabled": true})";
const Keys kOnHost = {{"zero_optimization.offload_optimizer", R"({"device": "cpu"})"}};

const std::vector<Case>& cases() {
  static const std::vector<Case> all = {
      {"Alone", {.accumulation = 2}},
      {"Stage0", {.ranks = 2, .stage = 0}},
      {"Stage1", {.ranks = 2, .accumulation = 2, .stage = 1}},
      {"Stage2", {.ranks = 2, .accumulation = 2, .stage = 2}},
      {"Stage3", {.ranks = 2, .accumulation = 2, .stage = 3}},
      {"Sharded",
       {.ranks = 4, .stage = 3},
       {{"bf16", kBf16},
        {"zero_optimization.stage3_param_persistence_threshold", "0"},
        {"zero_optimization.zero_hpz_partition_size", "2"}}},
      {"Bf16", {.ranks = 2, .stage = 1}, {{"bf16", kBf16}}},
      {"PureBf16",
       {.ranks = 2, .stage = 1},
       {{"bf16", R"({"enabled": true, "bf16_master_weights_and_grads": true,
                     "bf16_optimizer_states": true})"}}},
      {"Fp16", {.ranks = 2, .stage = 2}, {{"fp16", R"({"enabled": true})"}}},
      {"Once", {.ranks = 2, .stage = 2}, {{"gradient_reduction", "\"once\""}}},
      {"SentInBf16", {.ranks = 2, .stage = 1}, {{"communication_data_type", "\"bf16\""}}},
      {"SparseTable", {.ranks = 2, .stage = 0}, {{"sparse_gradients", "true"}}},
      {"Tiles", {.accumulation = 2}, {{"tiling", R"({"wte": [1, 4], "*.mlp.*": [1, 2]})"}}},
      {"TilesStage3",
       {.ranks = 2, .accumulation = 2, .stage = 3},
       {{"tiling", R"({"wte": [1, 4], "*.mlp.*": [1, 2]})"},
        {"bf16", kBf16},
        {"zero_optimization.stage3_param_persistence_threshold", "0"}},
       "padded"},
      {"Recompute", {}, {{"activation_checkpointing.granularity", "\"full\""}}},
      {"Regions", {}, {{"activation_checkpointing.granularity", "\"selective\""}}},
      {"Smoothing", {}, {{"model.label_smoothing", "0.1"}}},
      {"Padded", {.accumulation = 2}, {}, "padded"},
      {"Documents", {.accumulation = 2}, {}, "documents"},
      {"Pipeline", {.ranks = 2, .accumulation = 4, .pipeline = R"({"size": 2})"}},
      {"Interleaved",
       {.ranks = 2,
        .accumulation = 4,
        .pipeline = R"({"size": 2, "schedule": "interleaved", "chunks": 2})"},
       {{"model.num_layers", "4"}}},
      {"Tensor", {.ranks = 2, .accumulation = 2, .tensor = 2}},
      {"TensorBf16", {.ranks = 4, .stage = 3, .tensor = 2}, {{"bf16", kBf16}}},
      {"Sequence", {.ranks = 2, .tensor = 2, .sequence = true}},
      {"Grid", {.ranks = 4, .tensor = 4, .mode = "2d"}},
      {"Ring", {.ranks = 2, .context = 2}, {}, "", /*rounds=*/true},
      {"Ulysses", {.ranks = 2, .context = 2, .context_mode = "ulysses"}},
      {"Lora",
       {.ranks = 2, .stage = 1},
       {{"adapter", R"({"type": "lora", "r": 2, "alpha": 8, "targets": "all-linear"})"}}},
      {"Qlora",
       {.ranks = 2, .stage = 1},
       {{"adapter", R"({"type": "lora", "r": 2, "alpha": 8, "quantize_base": "nf4"})"}}},
      {"QloraPlainScales",
       {},
       {{"adapter", R"({"type": "lora", "r": 2, "alpha": 8, "quantize_base": "nf4",
                        "double_quantization": false})"}}},
      {"QloraInt8",
       {},
       {{"adapter", R"({"type": "lora", "r": 2, "alpha": 8, "quantize_base": "int8"})"}}},
      {"QloraTensor",
       {.ranks = 2, .tensor = 2},
       {{"model.hidden_size", "128"},
        {"adapter", R"({"type": "lora", "r": 2, "alpha": 8, "quantize_base": "nf4"})"}}},
      {"Lamb", {.ranks = 2, .stage = 1}, {{"optimizer.type", "\"Lamb\""}}},
      {"Lars", {.ranks = 2, .stage = 3}, {{"optimizer", R"({"type": "Lars"})"}}},
      {"Sgd", {}, {{"optimizer", R"({"type": "SGD", "params": {"lr": 0.1, "momentum": 0.9}})"}}},
      {"Lion", {}, {{"optimizer", R"({"type": "Lion"})"}}},
      {"Adagrad", {}, {{"optimizer", R"({"type": "Adagrad"})"}}},
      {"RmsProp", {}, {{"optimizer", R"({"type": "RMSprop"})"}}},
      {"NAdam", {}, {{"optimizer", R"({"type": "NAdam"})"}}},
      {"Adamax", {}, {{"optimizer", R"({"type": "Adamax"})"}}},
      {"Muon", {.ranks = 2, .stage = 2}, {{"optimizer", R"({"type": "Muon"})"}}},
      {"MuonAlone", {}, {{"optimizer", R"({"type": "Muon"})"}}},
      {"MuonTensor", {.ranks = 2, .tensor = 2}, {{"optimizer", R"({"type": "Muon"})"}}},
      {"EightBits",
       {.ranks = 2, .stage = 1},
       {{"optimizer", R"({"type": "AdamW8bit", "params": {"lr": 1e-3, "min_8bit_size": 1}})"}}},
      {"FourBits",
       {.ranks = 2, .stage = 1},
       {{"optimizer", R"({"type": "AdamW4bit", "params": {"lr": 1e-3, "min_4bit_size": 1}})"}}},
      {"Average",
       {.ranks = 2, .stage = 2},
       {{"trainer.ema.decay", "0.9"}, {"eval.weights", "\"ema\""}}},
      // Masters and states on the host, which updates them by the rules of the CPU.
      {"OnHost", {.accumulation = 2}, kOnHost},
      {"OnHostStage1", {.ranks = 2, .stage = 1}, kOnHost},
      {"OnHostFp16",
       {.ranks = 2, .stage = 2},
       {kOnHost[0], {"fp16", R"({"enabled": true, "initial_scale_power": 4})"}}},
      {"OnHostStage3",
       {.ranks = 2, .accumulation = 2, .stage = 3},
       {kOnHost[0],
        {"bf16", kBf16},
        {"zero_optimization.stage3_param_persistence_threshold", "0"}}},
      {"OnHostPipeline",
       {.ranks = 2, .accumulation = 4, .pipeline = R"({"size": 2})"},
       {kOnHost[0], {"bf16", kBf16}}},
      {"OnHostAverage",
       {.ranks = 2, .stage = 2},
       {kOnHost[0], {"trainer.ema.decay", "0.9"}, {"eval.weights", "\"ema\""}}},
      {"OnHostEightBits",
       {.ranks = 2, .stage = 1},
       {kOnHost[0],
        {"optimizer", R"({"type": "AdamW8bit", "params": {"lr": 1e-3, "min_8bit_size": 1}})"}}},
      {"OnHostMuon", {.ranks = 2, .tensor = 2}, {kOnHost[0], {"optimizer", R"({"type": "Muon"})"}}},
      {"OnHostLora",
       {.ranks = 2, .stage = 1},
       {kOnHost[0],
        {"adapter", R"({"type": "lora", "r": 2, "alpha": 8, "quantize_base": "nf4"})"}}},
      // Inputs of recomputed blocks in pinned memory of the host.
      {"HostActivations", {.accumulation = 2}, {kOnDevice, kMoreLayers, kRecomputed}},
      {"HostActivationsOneBuffer",
       {.ranks = 2, .stage = 2},
       {kOnDevice,
        kMoreLayers,
        {"bf16", kBf16},
        {"activation_checkpointing",
         R"({"granularity": "full", "offload": {"device": "cpu", "buffer_count": 1}})"}}},
      {"HostActivationsOfDeepSpeed",
       {.ranks = 2, .stage = 3},
       {kOnDevice,
        kMoreLayers,
        {"fp16", R"({"enabled": true, "initial_scale_power": 4})"},
        {"activation_checkpointing", R"({"granularity": "full", "cpu_checkpointing": true})"}}},
      {"HostActivationsPipeline",
       {.ranks = 2, .accumulation = 4, .pipeline = R"({"size": 2})"},
       {kOnDevice, kMoreLayers, kRecomputed}},
      {"HostActivationsParts",
       {.ranks = 2, .accumulation = 2, .tensor = 2},
       {kOnDevice,
        kMoreLayers,
        {"activation_checkpointing",
         R"({"granularity": "full", "partition_activations": true, "cpu_checkpointing": true})"}}},
      {"HostActivationsPadded", {.accumulation = 2}, {kOnDevice, kRecomputed}, "padded"},
      // Weights in pinned memory of the host, of which a block is on the device at a time.
      {"HostWeights",
       {.accumulation = 2, .stage = 3},
       {kOnDevice, kMoreLayers, kGatherAll, kWeightsOnHost}},
      {"HostWeightsBf16",
       {.ranks = 2, .accumulation = 2, .stage = 3},
       {kOnDevice, kGatherAll, kWeightsOnHost, {"bf16", kBf16}}},
      {"HostWeightsFp16",
       {.ranks = 2, .stage = 3},
       {kOnDevice,
        kGatherAll,
        kWeightsOnHost,
        {"fp16", R"({"enabled": true, "initial_scale_power": 4})"}}},
      {"HostWeightsSomePersistent",
       {.ranks = 2, .stage = 3},
       {kOnDevice,
        kWeightsOnHost,
        {"zero_optimization.stage3_param_persistence_threshold", "500"}}},
      {"HostWeightsLora",
       {.stage = 3},
       {kOnDevice,
        kGatherAll,
        kWeightsOnHost,
        {"adapter", R"({"type": "lora", "r": 2, "alpha": 8, "targets": "all-linear"})"}}},
      {"HostWeightsTiles",
       {.accumulation = 2, .stage = 3},
       {kOnDevice, kGatherAll, kWeightsOnHost, {"tiling", R"({"*.mlp.*": 2})"}}},
      {"HostWeightsTilesOfRanks",
       {.ranks = 2, .accumulation = 2, .stage = 3},
       {kOnDevice,
        kGatherAll,
        kWeightsOnHost,
        kStatesOnHost,
        {"bf16", kBf16},
        {"tiling", R"({"*.mlp.*": 2})"}}},
      {"DiskWeightsTiles",
       {.ranks = 2, .stage = 3},
       {kOnDevice, kGatherAll, kWeightsOnDisk, {"tiling", R"({"*.mlp.*": 2})"}}},
      {"HostWeightsAverage",
       {.ranks = 2, .stage = 3},
       {kOnDevice,
        kGatherAll,
        kWeightsOnHost,
        {"trainer.ema.decay", "0.9"},
        {"eval.weights", "\"ema\""}}},
      {"HostWeightsMuon",
       {.ranks = 2, .stage = 3},
       {kOnDevice, kGatherAll, kWeightsOnHost, {"optimizer", R"({"type": "Muon"})"}}},
      // DeepSpeed's usual pair, and all three.
      {"HostBoth",
       {.accumulation = 2, .stage = 3},
       {kOnDevice, kMoreLayers, kGatherAll, kWeightsOnHost, kStatesOnHost}},
      {"HostBothBf16",
       {.ranks = 2, .accumulation = 2, .stage = 3},
       {kOnDevice, kGatherAll, kWeightsOnHost, kStatesOnHost, {"bf16", kBf16}}},
      {"HostBothFp16",
       {.ranks = 2, .stage = 3},
       {kOnDevice,
        kGatherAll,
        kWeightsOnHost,
        kStatesOnHost,
        {"fp16", R"({"enabled": true, "initial_scale_power": 4})"}}},
      {"HostAllThree",
       {.ranks = 2, .accumulation = 2, .stage = 3},
       {kOnDevice,
        kMoreLayers,
        kGatherAll,
        kWeightsOnHost,
        kStatesOnHost,
        kRecomputed,
        {"bf16", kBf16}}},
      // On a disk, through the memory of the host.
      {"DiskStates", {.accumulation = 2, .stage = 1}, {kOnDevice, kStatesOnDisk}},
      {"DiskStatesBf16",
       {.ranks = 2, .stage = 2},
       {kOnDevice, kStatesOnDisk, {"zero_optimization.sub_group_size", "1024"}, {"bf16", kBf16}}},
      {"DiskWeights", {.accumulation = 2, .stage = 3}, {kOnDevice, kGatherAll, kWeightsOnDisk}},
      {"DiskWeightsBf16",
       {.ranks = 2, .accumulation = 2, .stage = 3},
       {kOnDevice, kMoreLayers, kGatherAll, kWeightsOnDisk, {"bf16", kBf16}}},
      {"DiskActivations", {.accumulation = 2}, {kOnDevice, kMoreLayers, kInputsOnDisk}},
      {"DiskAllThree",
       {.ranks = 2, .accumulation = 2, .stage = 3},
       {kOnDevice,
        kMoreLayers,
        kGatherAll,
        kStatesOnDisk,
        kWeightsOnDisk,
        kInputsOnDisk,
        {"fp16", R"({"enabled": true, "initial_scale_power": 4})"}}},
      {"DiskWeightsSomeInMemory",
       {.ranks = 2, .stage = 3},
       {kOnDevice,
        kGatherAll,
        kStatesOnHost,
        {"zero_optimization.offload_param",
         R"({"device": "nvme", "nvme_path": "/tmp", "max_in_cpu": 20000})"}}},
      // Rules that the host computes.
      {"Adafactor", {.accumulation = 2}, {{"optimizer", R"({"type": "Adafactor"})"}}},
      {"AdafactorStage3",
       {.ranks = 2, .stage = 3},
       {{"optimizer", R"({"type": "Adafactor"})"}, {"bf16", kBf16}}},
      {"AdafactorTensor", {.ranks = 2, .tensor = 2}, {{"optimizer", R"({"type": "Adafactor"})"}}},
      {"OneBitAdam",
       {.ranks = 2, .stage = 0},
       {{"optimizer",
         R"({"type": "OneBitAdam", "params": {"lr": 1e-3, "eps": 1e-4, "freeze_step": 2}})"}}},
      {"OneBitAdamBf16",
       {.ranks = 2, .stage = 1},
       {{"optimizer",
         R"({"type": "OneBitAdam", "params": {"lr": 1e-3, "eps": 1e-4, "freeze_step": 2}})"},
        {"bf16", kBf16}}},
      {"OneBitLamb",
       {.ranks = 2, .stage = 0},
       {{"optimizer",
         R"({"type": "OneBitLamb", "params": {"lr": 1e-3, "eps": 1e-4, "freeze_step": 2}})"}}},
      {"ZeroOneAdam",
       {.ranks = 2, .stage = 0},
       {{"optimizer",
         R"({"type": "ZeroOneAdam", "params": {"lr": 1e-3, "eps": 1e-4, "var_freeze_step": 2,
                "var_update_scaler": 1, "local_step_scaler": 2, "local_step_clipper": 4}})"}}},
  };
  return all;
}

/// Long enough for the compressed updates of 1-bit optimizers.
constexpr std::int64_t kCompressedSteps = 4;

class GpuTraining : public ::testing::TestWithParam<Case> {};

TEST_P(GpuTraining, GivesTheBitsOfTheCpu) {
  TinyRun run = with(TinyRun(), GetParam().keys);
  if (std::string(GetParam().data) == "padded") run.use_padded_documents();
  if (std::string(GetParam().data) == "documents") run.use_separate_documents();

  const bool compresses = std::string(GetParam().name).find("One") == 0 ||
                          std::string(GetParam().name).find("ZeroOne") == 0;
  expect_same_on_gpu(
      run, GetParam().layout, compresses ? kCompressedSteps : kSteps, GetParam().rounds);
}

INSTANTIATE_TEST_SUITE_P(Features, GpuTraining, ::testing::ValuesIn(cases()), [](const auto& info) {
  return std::string(info.param.name);
});

TEST(GpuTraining, ContinuesOnTheHostOfADeviceAndBack) {
  const Layout layout = {.ranks = 2, .accumulation = 2, .stage = 2};
  TinyRun gpu;
  gpu.set("bf16", kBf16).use_world(world_on_gpu);
  TinyRun on_host = gpu;
  on_host.set(kOnHost[0].first, kOnHost[0].second);
  const files::TempDir first, second;
  const Trace whole = gpu.train(layout, 3);

  (void)gpu.train(layout, 1, first.path());
  (void)on_host.train(layout, 2, second.path(), *checkpoint::newest(first.path()));
  const Trace rest = gpu.train(layout, 3, {}, *checkpoint::newest(second.path()));

  EXPECT_EQ(rest.digest, whole.digest);
}

/// Checkpoints do not depend on where weights, masters and states are.
TEST(GpuTraining, ContinuesFromEachPlaceInEachOther) {
  const Layout layout = {.ranks = 2, .accumulation = 2, .stage = 3};
  for (const char* const type : {"fp32", "bf16"}) {
    TinyRun gpu = with(TinyRun(), {kOnDevice, kGatherAll});
    if (std::string(type) == "bf16") gpu.set("bf16", kBf16);
    TinyRun cpu = gpu;
    gpu.use_world(world_on_gpu);
    const TinyRun weights = with(gpu, {kWeightsOnHost}),
                  both = with(gpu, {kWeightsOnHost, kStatesOnHost}),
                  disk = with(gpu, {kWeightsOnDisk, kStatesOnDisk});
    const Trace whole = cpu.train(layout, 5);
    const files::TempDir saved;
    const auto folder = [&](std::int64_t step) { return saved.path() / std::to_string(step); };
    (void)cpu.train(layout, 1, folder(1));
    std::int64_t step = 1;
    for (const TinyRun& run : {weights, both, disk}) {
      const auto from = *checkpoint::newest(folder(step++));
      (void)run.train(layout, step, folder(step), from);
    }
    const Trace rest = gpu.train(layout, 5, {}, *checkpoint::newest(folder(step)));
    EXPECT_EQ(rest.digest, whole.digest) << type;
  }
}

TEST(GpuTraining, RefusesStatesOnTheHostWithout32BitMasters) {
  TinyRun run;
  // The plan is for the CPU, also on a host with GPUs: the refusal is that of the device's step.
  run.set("bf16", R"({"enabled": true, "bf16_master_weights_and_grads": true})")
      .set("optimizer", R"({"type": "Adafactor"})")
      .set("run.device", "\"cpu\"")
      .use_world(world_on_gpu);
  try {
    (void)run.train({}, 1);
    FAIL() << "trained on a device";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), Error::Kind::Unsupported);
    EXPECT_THAT(error.what(), testing::HasSubstr("need fp32 masters"));
  }
}

TEST(GpuTraining, ContinuesFromACheckpointOfTheCpuAndBack) {
  const Layout layout = {.ranks = 2, .accumulation = 2, .stage = 2};
  TinyRun cpu, gpu;
  cpu.set("bf16", kBf16);
  gpu = cpu;
  gpu.use_world(world_on_gpu);
  const files::TempDir first, second;
  const Trace whole = cpu.train(layout, 3);

  (void)cpu.train(layout, 1, first.path());
  (void)gpu.train(layout, 2, second.path(), *checkpoint::newest(first.path()));
  const Trace rest = cpu.train(layout, 3, {}, *checkpoint::newest(second.path()));

  EXPECT_EQ(rest.digest, whole.digest);
}

// ---- noise, adapters that samples choose, and models that are only read

TEST(GpuTraining, AddsTheNoiseOfNeftune) {
  TinyRun run;
  const std::filesystem::path file = run.folder() / "pairs.jsonl";
  std::ofstream records(file);
  for (int i = 0; i < 8; ++i)
    records << R"({"prompt": "what", "completion": "that"})"
            << "\n";
  records.close();
  run.set("data.train", "[\"" + file.string() + "\"]")
      .set("data.validation_fraction", "0.25")
      .set("task", R"({"type": "sft", "params": {"neftune_alpha": 5}})");
  expect_same_on_gpu(run, {.accumulation = 2});
}

class GpuModels : public ::testing::Test {
 protected:
  /// Returns the results of `fn` for the trained model on the CPU and on a simulated GPU.
  template <class Fn>
  auto on_both(const files::TempDir& folder, Fn fn) {
    decltype(fn(std::declval<engine::OpenModel&>())) cpu, gpu;
    for (auto* const out : {&cpu, &gpu}) {
      comm::run_threads(1, [&](comm::World& host) {
        at::set_num_threads(1);
        const auto made = out == &gpu ? world_on_gpu(host) : nullptr;
        const auto model = engine::find_model(folder.path());
        engine::load_model(*model, made ? *made : host);
        *out = fn(*model);
      });
    }
    return std::pair(cpu, gpu);
  }
};

TEST_F(GpuModels, WriteTheTokensOfTheCpu) {
  for (const FamilyRow& row : family_rows()) {
    static const std::set<std::string> kRows = {
        "gpt2", "llama", "gemma2", "mistral", "bloom", "t5"};
    if (!kRows.contains(row.name)) continue;
    SCOPED_TRACE(row.name);
    const files::TempDir folder;
    (void)run_of(row).train({}, 1, folder.path());
    const auto [cpu, gpu] = on_both(folder, [&](engine::OpenModel& model) {
      engine::Generator generator(*model.executor, *model.tokenizer, model.shape);
      engine::GenerateOptions how;
      how.max_new_tokens = 10;
      how.seed = 3;
      std::vector<std::vector<std::int32_t>> out;
      out.push_back(generator.run_ids({116, 104, 101}, how, {}).tokens);
      for (const auto& one : generator.run_samples({116, 104}, how, 2))
        out.push_back(one.tokens);
      how.beams = 2;
      for (const auto& beam : generator.run_beams({116, 104}, how, 2))
        out.push_back(beam.made.tokens);
      how.beams = 1;
      if (row.task == "seq2seq") return out;
      std::vector<engine::Generator::Asked> asked(2);
      asked[0].prompt = {97, 98};
      asked[1].prompt = {97, 98, 99, 32};
      generator.run_prompts(asked, how, 2, [&](std::size_t, const engine::Generated& one) {
        out.push_back(one.tokens);
      });
      return out;
    });
    EXPECT_EQ(cpu, gpu);
  }
  EXPECT_THAT(take_violations(), testing::IsEmpty());
}

// ---- reinforcement learning

class GpuPolicies : public ::testing::TestWithParam<const char*> {};

TEST_P(GpuPolicies, LearnAsOnTheCpu) {
  const std::string rewards =
      R"({"rewards": [{"type": "regex", "pattern": "[@-~]"}], "max_new_tokens": 4,
          "prompts_at_once": 2, )";
  const TinyRun run = reinforcing(some_prompts(), rewards + GetParam() + "}");
  for (const Layout& layout :
       {Layout{.accumulation = 2, .stage = 0}, Layout{.ranks = 2, .stage = 3}}) {
    const Trace cpu = train(run, layout, {.steps = 2}),
                gpu = train(run, layout, {.steps = 2, .make_world = world_on_gpu});
    expect_alike(gpu, cpu);
  }
  EXPECT_THAT(take_violations(), testing::IsEmpty());
}

TEST(GpuTraining, PoliciesAndCriticsLearnWithTheirWeightsOnTheHost) {
  const TinyRun run = with(reinforcing(some_prompts(), R"({"rewards": [{"type": "regex",
      "pattern": "[@-~]"}], "max_new_tokens": 4, "prompts_at_once": 2, "algorithm": "ppo",
      "samples": 1, "iterations": 2, "critic": {"lr": 1e-3}})"),
                           {kOnDevice, kGatherAll, kWeightsOnHost, kStatesOnHost});
  for (const Layout& layout :
       {Layout{.accumulation = 2, .stage = 3}, Layout{.ranks = 2, .stage = 3}}) {
    const Trace cpu = train(run, layout, {.steps = 2}),
                gpu = train(run, layout, {.steps = 2, .make_world = world_on_gpu});
    expect_alike(gpu, cpu);
  }
  EXPECT_THAT(take_violations(), testing::IsEmpty());
}

INSTANTIATE_TEST_SUITE_P(
    GpuTraining,
    GpuPolicies,
    ::testing::Values(
        R"("algorithm": "grpo", "samples": 4, "kl": {"coefficient": 0.05})",
        R"("algorithm": "ppo", "samples": 1, "iterations": 2, "critic": {"lr": 1e-3})",
        R"("samples": 2, "iterations": 2, "top_k": 40, "top_p": 0.9, "entropy_coefficient": 0.01)"));

}  // namespace
}  // namespace tessera::test
