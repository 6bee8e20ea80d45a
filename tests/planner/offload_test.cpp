// SPDX-License-Identifier: Apache-2.0
// What rests on a disk: its memory, the bytes that a step moves, checks of the folders, and notes.
#include "tessera/planner/offload.h"

#include <string>

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tessera/base/error.h"
#include "tessera/base/files.h"
#include "tessera/planner/course.h"
#include "tessera/planner/make_plan.h"
#include "tessera/planner/memory.h"
#include "tessera/planner/offload_ladder.h"
#include "tessera/planner/place.h"
#include "tessera/planner/plan.h"
#include "tessera/report/first_table.h"

namespace tessera::planner {
namespace {

using testing::AllOf;
using testing::Contains;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::Not;

Plan offload_plan(const std::string& preset, const std::string& members) {
  const std::string text = R"({"model": {"preset": ")" + preset +
                           R"("}, "data": {"train": "a.txt", "sequence_length": 128}, )" + members +
                           "}";
  return make_plan(json::parse(text, "c.json"), /*ranks=*/1, "my.json");
}

// The preset nano with a byte vocabulary and 128 positions, counted by hand: a layer has 12 C^2 +
// 13 C values, the tables 256 C and 128 C, the last norm 2 C. In flat buffers each parameter begins
// at a chunk of 1024 elements.
constexpr std::int64_t kWidth = 128;
constexpr std::int64_t kValues =
    4 * (12 * kWidth * kWidth + 13 * kWidth) + 256 * kWidth + 128 * kWidth + 2 * kWidth;
constexpr std::int64_t kInBuffers =
    4 * (12 * kWidth * kWidth + 8 * 1024) + 256 * kWidth + 128 * kWidth + 2 * 1024;

std::string states_offloaded(const std::string& folder, const std::string& more = "") {
  return fmt::format(R"("train_batch_size": 4, "bf16": {{"enabled": true}},
      "zero_optimization": {{"stage": 3, "sub_group_size": 65536, "offload_optimizer":
      {{"device": "nvme", "nvme_path": "{}"{}}}}})",
                     folder,
                     more);
}

// Counted by hand on one rank. Every group has 12 bytes a value, for master and two moments, and
// begins a block of 1 MiB on the disk: 64 KiB of values are 768 KiB. A layer of 200 chunks has
// three such groups and one of 8 chunks; the token table has 32 chunks, the position table 16, the
// last norm 2. On the disk a group has a block, however small it is.
TEST(MemoryEstimates, OfStatesOnADiskAreBuffers) {
  const std::string members = R"("train_batch_size": 4, "bf16": {"enabled": true},
      "zero_optimization": {"stage": 3})";
  const MemoryEstimate memory = estimate_memory(offload_plan("nano", members)),
                       disk = estimate_memory(offload_plan("nano", states_offloaded("/tmp")));
  constexpr std::int64_t kMiB = 1 << 20;

  EXPECT_EQ(memory.disk, 0);
  EXPECT_EQ(memory.optimizer, 4 * kInBuffers + 8 * kValues);
  EXPECT_EQ(disk.optimizer, 3 * kMiB);
  EXPECT_GE(disk.disk, 4 * 4 * kMiB);
  EXPECT_LE(disk.disk, (4 * 4 + 4) * kMiB);
  EXPECT_EQ(disk.parameters, memory.parameters);
  EXPECT_EQ(disk.gradients, memory.gradients);
  EXPECT_EQ(disk.disk, offload_bytes(offload_plan("nano", states_offloaded("/tmp"))).states);
  EXPECT_THAT(disk.text(), HasSubstr("on the disk)"));
}

TEST(MemoryEstimates, OfStatesOnADiskFollowItsKeys) {
  const auto need = [](const std::string& more) {
    return estimate_memory(offload_plan("nano", states_offloaded("/tmp", more)));
  };
  constexpr std::int64_t kMiB = 1 << 20;

  EXPECT_EQ(need(R"(, "buffer_count": 2)").optimizer, 2 * kMiB);
  EXPECT_EQ(need(R"(, "buffer_count": 5)").optimizer, 5 * kMiB);
  EXPECT_EQ(need(R"(, "pipeline_read": false)").optimizer, 2 * kMiB);
  EXPECT_EQ(need(R"(, "pipeline_read": false, "pipeline_write": false)").optimizer, kMiB);
  EXPECT_LT(need(R"(, "ratio": 0.5)").disk, need("").disk);
  EXPECT_GT(need(R"(, "ratio": 0.5)").optimizer, need("").optimizer);
  EXPECT_EQ(need(R"(, "ratio": 0)").disk, 0);
}

std::string gradients_offloaded(const std::string& more = "", const std::string& aio = "4096") {
  return fmt::format(R"("train_batch_size": 4, "bf16": {{"enabled": true}},
      "aio": {{"block_size": {}}}, "zero_optimization": {{"stage": 3, "offload_optimizer":
      {{"device": "nvme", "nvme_path": "/tmp", "gradients": true}}}}{})",
                     aio,
                     more);
}

// Counted by hand on one rank, in fp32: 4 layers of 200 chunks, the token table (32 chunks), which
// is tied and has two uses, the position table (16) and the last norm (2). In memory are three
// parts of a layer, three of the tables, which are more than four times smaller, and the norm.
TEST(MemoryEstimates, OfGradientsOnADiskAreBuffers) {
  constexpr std::int64_t kChunkBytes = 4 * 1024, kLayer = 200 * kChunkBytes;
  constexpr std::int64_t kOnce = (4 * 200 + 16 + 2) * kChunkBytes, kTable = 32 * kChunkBytes;
  const auto plan = [](const std::string& more) {
    return offload_plan("nano", gradients_offloaded(more));
  };
  const auto moved = [&](const std::string& more) { return offload_bytes(plan(more)); };
  const std::string few = R"(, "gradient_accumulation_steps": 4)";

  EXPECT_EQ(moved("").gradients, kOnce + 2 * kTable);
  EXPECT_EQ(moved("").gradient_buffers, 3 + 3 + 1);
  EXPECT_EQ(moved("").written - moved("").states, kOnce + 3 * kTable);
  EXPECT_EQ(moved("").read - moved("").states, kOnce + 4 * kTable);
  EXPECT_EQ(moved(few).written - moved("").written, 3 * (kOnce + 2 * kTable));
  EXPECT_EQ(moved(few).read - moved("").read, 3 * (kOnce + 2 * kTable));
  EXPECT_EQ(estimate_memory(plan("")).gradients, 3 * kLayer + 3 * kTable + 2 * kChunkBytes);
  EXPECT_EQ(estimate_memory(plan("")).shared, 0);
  // A part that is smaller than a transfer stays in memory.
  EXPECT_EQ(offload_bytes(offload_plan("nano", gradients_offloaded("", "16777216"))).gradients, 0);
}

// The gradients are most of what is left when masters, states and weights rest on a disk.
TEST(MemoryEstimates, OfALlama7bShapeFitInto12GiBWithGradientsOnADisk) {
  const auto need = [](const std::string& sums, bool rest) {
    const std::string text = fmt::format(R"({{"model": {{"family": "llama", "num_layers": 32,
        "hidden_size": 4096, "num_heads": 32, "ffn_hidden_size": 11008, "vocab_size": 32000,
        "max_positions": 2048}}, "data": {{"train": "a.txt", "sequence_length": 128}},
        "tokenizer": {{"type": "byte"}}, "train_batch_size": 1, "bf16": {{"enabled": true}},
        "activation_checkpointing": {{"granularity": "full"}}, "tiling": {{"lm_head": [1, 8]}},
        "data_types": {{"grad_accum_dtype": "{}"}}, "zero_optimization": {{"stage": 3,
        "offload_optimizer": {{"device": "nvme", "nvme_path": "/tmp", "gradients": {}}},
        "offload_param": {{"device": "nvme", "nvme_path": "/tmp"}}}}}})",
                                         sums,
                                         rest);
    return estimate_memory(make_plan(json::parse(text, "c.json"), /*ranks=*/1, "my.json"));
  };
  constexpr std::int64_t kLimit = std::int64_t{12} << 30;

  EXPECT_GT(need("bf16", false).total(), kLimit);
  EXPECT_LT(need("bf16", true).total(), kLimit);
  EXPECT_LT(need("fp32", true).total(), kLimit);
}

std::string weights_offloaded(const std::string& folder, const std::string& more = "") {
  return fmt::format(R"("train_batch_size": 4, "bf16": {{"enabled": true}},
      "aio": {{"block_size": 4096}}, "zero_optimization": {{"stage": 3,
      "stage3_param_persistence_threshold": 0, "offload_param":
      {{"device": "nvme", "nvme_path": "{}"{}}}}})",
                     folder,
                     more);
}

// Counted by hand on one rank: 4 layers of 200 chunks, tables of 32 and 16 chunks, and a norm of 2
// chunks, 2 bytes a value. At most two layers are gathered: the one that runs, and the next.
TEST(MemoryEstimates, OfWeightsOnADiskAreBuffersAndGatheredLayers) {
  constexpr std::int64_t kLayer = 200 * 1024 * 2;
  const auto need = [](const std::string& more) {
    return estimate_memory(offload_plan("nano", weights_offloaded("/tmp", more)));
  };
  const MemoryEstimate one = need(R"(, "buffer_count": 1)");

  EXPECT_EQ(one.disk, 4 * kLayer + (32 + 16 + 2) * 1024 * 2);
  EXPECT_EQ(one.parameters, (1 + 2) * kLayer);
  EXPECT_EQ(need("").parameters, (3 + 2) * kLayer);
  EXPECT_EQ(need(R"(, "buffer_count": 1000)").parameters, (7 + 2) * kLayer);
  EXPECT_EQ(need(R"(, "max_in_cpu": 300000)").disk, 3 * kLayer + 2 * 1024 * 2);
  EXPECT_EQ(need(R"(, "max_in_cpu": 1e9)").disk, 0);
  EXPECT_THAT(one.text(), HasSubstr("on the disk)"));
}

// Forward reads both tables, the layers, the norm, and the tied table again; backward begins with
// the head, which is still there, and reads the layers and both tables. A second micro-batch begins
// with the tables, which are still there. The update reads and writes all once.
TEST(MemoryEstimates, OfWeightsOnADiskCountWhatAStepMoves) {
  constexpr std::int64_t kChunkBytes = 1024 * 2, kAll = 4 * 200 + 32 + 16 + 2;
  constexpr std::int64_t kFirst = 8 * 200 + 3 * 32 + 2 * 16 + 2, kLater = kFirst - 32 - 16;
  const auto moved = [](const std::string& more) {
    return offload_bytes(offload_plan("nano", weights_offloaded("/tmp") + more));
  };

  EXPECT_EQ(moved("").written, kAll * kChunkBytes);
  EXPECT_EQ(moved("").read, (kFirst + kAll) * kChunkBytes);
  EXPECT_EQ(moved(R"(, "gradient_accumulation_steps": 4)").read,
            (kFirst + 3 * kLater + kAll) * kChunkBytes);
}

std::string activations_offloaded(const std::string& folder,
                                  const std::string& more = "",
                                  const std::string& recompute = R"("granularity": "full")") {
  return fmt::format(R"("train_batch_size": 4, "bf16": {{"enabled": true}},
      "activation_checkpointing": {{{}, "offload": {{"device": "nvme", "nvme_path": "{}"{}}}}},
      "aio": {{"block_size": 4096}})",
                     recompute,
                     folder,
                     more);
}

// Counted by hand: the inputs of 4 layers and of the last norm, if that is a block of its own, are
// [4, 128, 128] in bf16; the last one is the objective's, which stays. Files have room for 8.
TEST(MemoryEstimates, OfActivationsOnADiskAreBuffers) {
  constexpr std::int64_t kFlow = 4 * 128 * kWidth * 2;
  const auto plan = [](const std::string& members) { return offload_plan("nano", members); };
  const Plan memory = plan(R"("train_batch_size": 4, "bf16": {"enabled": true},
      "activation_checkpointing": {"granularity": "full"})");
  const Plan disk = plan(activations_offloaded("/tmp"));
  const OffloadBytes moved = offload_bytes(disk);

  ASSERT_EQ(estimate_memory(disk).unknown, "");
  EXPECT_EQ(moved.activations, 8 * kFlow);
  EXPECT_EQ(moved.read, moved.written);
  EXPECT_EQ(moved.written, 4 * kFlow);
  EXPECT_EQ(estimate_memory(disk).disk, 8 * kFlow);
  EXPECT_LT(estimate_memory(disk).activations, estimate_memory(memory).activations);
  EXPECT_EQ(
      estimate_memory(plan(activations_offloaded("/tmp", R"(, "buffer_count": 3)"))).activations,
      estimate_memory(disk).activations + kFlow);
}

struct BadRow {
  std::string members;
  const char* key;
  const char* what;
};

TEST(Offload, RefusesKeysThatContradictEachOther) {
  const std::string batch = R"("train_batch_size": 4, )";
  for (const auto& [members, key, what] : {
           BadRow{activations_offloaded("/tmp", "", R"("granularity": "none")"),
                  "activation_checkpointing.offload.device",
                  "needs recomputation"},
           BadRow{activations_offloaded("/tmp", "", R"("granularity": "full", "every_n": 2)"),
                  "activation_checkpointing.offload.device",
                  "needs recomputation"},
           BadRow{batch + R"("activation_checkpointing": {"granularity": "full",
                             "offload": {"device": "nvme"}})",
                  "activation_checkpointing.offload.nvme_path",
                  "is missing"},
           BadRow{batch + R"("activation_checkpointing": {"granularity": "full", "every_n": 2,
                             "partition_activations": true})",
                  "activation_checkpointing.partition_activations",
                  "needs recomputation"},
           BadRow{batch + R"("activation_checkpointing": {"granularity": "full",
                             "offload": {"device": "disk"}})",
                  "activation_checkpointing.offload.device",
                  "nvme"},
           BadRow{batch + R"("activation_checkpointing": {"granularity": "full",
                             "offload": {"device": "nvme", "nvme_path": "/tmp",
                                         "buffer_count": 0}})",
                  "activation_checkpointing.offload.buffer_count",
                  "0"},
           BadRow{batch + R"("zero_optimization": {"stage": 2, "offload_param": {"device": "nvme",
                             "nvme_path": "/tmp"}})",
                  "zero_optimization.offload_param.device",
                  "stage is 2"},
           BadRow{batch + R"("zero_optimization": {"stage": 0, "offload_optimizer":
                             {"device": "nvme", "nvme_path": "/tmp"}})",
                  "zero_optimization.offload_optimizer.device",
                  "stage is 0"},
           BadRow{batch + R"("gradient_reduction": "once", "zero_optimization": {"stage": 1,
                             "offload_optimizer": {"device": "nvme", "nvme_path": "/tmp",
                             "gradients": true}})",
                  "zero_optimization.offload_optimizer.gradients",
                  "sums whole gradients"},
           BadRow{batch + R"("zero_optimization": {"stage": 3, "offload_optimizer":
                             {"device": "nvme", "nvme_path": "/tmp", "ratio": 1.5}})",
                  "zero_optimization.offload_optimizer.ratio",
                  "1.5"},
           BadRow{batch + R"("zero_optimization": {"stage": 3, "offload_optimizer":
                             {"device": "nvme", "nvme_path": "/tmp", "super_offload": true}})",
                  "zero_optimization.offload_optimizer.super_offload",
                  "needs masters and states in the memory of the host"},
           BadRow{batch + R"("zero_optimization": {"stage": 2, "offload_optimizer":
                             {"device": "cpu", "super_offload": true}},
                             "gradient_clip_value": 1.0)",
                  "zero_optimization.offload_optimizer.super_offload",
                  "not clipped one by one"},
           BadRow{batch + R"("zero_optimization": {"stage": 2, "offload_optimizer":
                             {"device": "cpu", "super_offload": true}},
                             "optimizer": {"type": "Muon"})",
                  "zero_optimization.offload_optimizer.super_offload",
                  "and not Muon"},
           BadRow{batch + R"("zero_optimization": {"stage": 2, "offload_optimizer":
                             {"device": "cpu", "super_offload": true}},
                             "optimizer": {"type": "AdamW8bit"})",
                  "zero_optimization.offload_optimizer.super_offload",
                  "states in fp32"},
           BadRow{batch + R"("zero_optimization": {"stage": 2, "zenflow": {"topk_ratio": 0.1}})",
                  "zero_optimization.zenflow",
                  "changes the results"},
       }) {
    SCOPED_TRACE(members);
    try {
      (void)offload_plan("nano", members);
      ADD_FAILURE() << "no error";
    } catch (const Error& error) {
      EXPECT_EQ(exit_code(error.kind()), exit_code(Error::Kind::Config));
      EXPECT_THAT(error.text(), AllOf(HasSubstr(key), HasSubstr(what), HasSubstr("c.json:")));
    }
  }
}

TEST(Offload, TellsKeysThatHaveNoEffectOnACpu) {
  const auto notes = [](const std::string& keys) {
    return offload_plan("nano",
                        R"("train_batch_size": 4, "activation_checkpointing": {)" + keys + "}")
        .notes();
  };
  const std::string full = R"("granularity": "full", )";

  EXPECT_THAT(notes(full + R"("cpu_checkpointing": true)"),
              Contains(AllOf(HasSubstr("cpu_checkpointing has no effect here"),
                             HasSubstr("already in host memory"))));
  EXPECT_THAT(notes(full + R"("offload": {"device": "cpu"})"),
              Contains(HasSubstr("offload.device \"cpu\" has no effect here")));
  EXPECT_THAT(notes(full + R"("partition_activations": true)"),
              Contains(HasSubstr("parallel.tensor.size is 1")));
  EXPECT_THAT(notes(R"("partition_activations": true, "cpu_checkpointing": true)"),
              Contains(HasSubstr("partition_activations has no effect: nothing is recomputed")));
  EXPECT_THAT(notes(full + R"("offload": {"nvme_path": "/tmp"})"),
              Contains(HasSubstr("activation_checkpointing.offload.nvme_path has no effect")));
}

/// The keys of the rungs, and whether the last one fits.
std::vector<std::string> rungs_of(const Plan& plan, std::uint64_t available, bool& fits) {
  std::vector<std::string> out;
  std::int64_t before = estimate_memory(plan).total();
  fits = false;
  for (const OffloadRung& rung : offload_ladder(plan, available, "/tmp")) {
    EXPECT_FALSE(fits) << "a rung after the first that fits";
    EXPECT_LE(rung.need.total(), before) << rung.keys;
    before = rung.need.total();
    fits = rung.fits;
    out.push_back(rung.keys);
  }
  return out;
}

TEST(OffloadLadders, ProposeTheSmallestOffloadThatFits) {
  const auto plan = [](int ranks) {
    const std::string text = R"({"model": {"preset": "gpt2-medium"}, "train_batch_size": 4,
        "tokenizer": {"type": "byte"}, "bf16": {"enabled": true},
        "data": {"train": "a.txt", "sequence_length": 128}, "zero_optimization": {"stage": 0}})";
    return make_plan(json::parse(text, "c.json"), ranks, "my.json");
  };
  constexpr std::uint64_t kTerabyte = 1'000'000'000'000;
  bool fits = false;

  EXPECT_THAT(rungs_of(plan(1), kTerabyte, fits),
              ElementsAre(HasSubstr("activation_checkpointing.granularity full")));
  EXPECT_TRUE(fits);
  EXPECT_THAT(rungs_of(plan(1), 1, fits),
              ElementsAre(HasSubstr("granularity full"),
                          AllOf(HasSubstr("stage 1, "), HasSubstr("offload_optimizer")),
                          AllOf(HasSubstr("stage 3, "), HasSubstr("offload_param")),
                          HasSubstr("offload_optimizer.gradients true")));
  EXPECT_FALSE(fits);
  EXPECT_THAT(rungs_of(plan(4), 1, fits),
              ElementsAre(HasSubstr("granularity full"),
                          "zero_optimization.stage 1",
                          "zero_optimization.stage 2",
                          "zero_optimization.stage 3",
                          HasSubstr("offload_optimizer"),
                          HasSubstr("offload_param"),
                          HasSubstr("offload_optimizer.gradients true")));
}

// What is typed after the refusal is a plan that fits.
TEST(OffloadLadders, AreInTheErrorOfAPlanThatDoesNotFit) {
  const Plan plan = offload_plan("gpt2-small",
                                 R"("train_batch_size": 1, "bf16": {"enabled": true},
          "activation_checkpointing": {"granularity": "full"})");
  const std::vector<OffloadRung> all = offload_ladder(plan, 1, "/tmp");
  ASSERT_EQ(all.size(), 3U);
  const auto enough =
      static_cast<std::uint64_t>(static_cast<double>(all[0].need.total()) / kUsableMemory + 1024);

  try {
    (void)check_memory(plan, enough);
    ADD_FAILURE() << "no error";
  } catch (const Error& error) {
    EXPECT_THAT(error.fix(),
                AllOf(HasSubstr("this fits: zero_optimization.stage 1, "),
                      HasSubstr("offload_optimizer"),
                      HasSubstr("on the disk"),
                      HasSubstr("a step reads"),
                      Not(HasSubstr("offload_param"))));
  }
  const Plan typed = offload_plan("gpt2-small",
                                  R"("train_batch_size": 1, "bf16": {"enabled": true},
          "activation_checkpointing": {"granularity": "full"}, "zero_optimization": {"stage": 1,
          "offload_optimizer": {"device": "nvme", "nvme_path": "/tmp"}})");
  EXPECT_EQ(check_memory(typed, enough).total(), all[0].need.total());
}

TEST(Offload, ToAFolderThatIsMissingOrFullIsRefusedAtTheStart) {
  const files::TempDir dir;
  const auto refused = [](const std::string& preset, const std::string& members) -> std::string {
    const PlanWithData plan(offload_plan(preset, members), {});
    try {
      (void)place(plan, std::uint64_t{1} << 60);
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), Error::Kind::Io);
      return error.what();
    }
    return "";
  };
  const auto refusal = [&](const std::string& preset, const std::string& folder) {
    return refused(preset, states_offloaded(folder));
  };

  EXPECT_EQ(refused("nano", weights_offloaded(dir.path().string())), "");
  EXPECT_THAT(refused("nano", weights_offloaded((dir.path() / "none").string())),
              AllOf(HasSubstr("offload_param.nvme_path"), HasSubstr("none is not a folder")));
  EXPECT_THAT(refused("gpt3", weights_offloaded(dir.path().string())),
              AllOf(HasSubstr("offload_param.nvme_path"), HasSubstr("free, and weights")));
  EXPECT_EQ(refusal("nano", dir.path().string()), "");
  // As the user root all folders can be written to; in this one no files can be made.
  EXPECT_THAT(refusal("nano", "/proc"),
              AllOf(HasSubstr("/proc"), HasSubstr("offload_optimizer.nvme_path")));
  EXPECT_THAT(refused("nano", activations_offloaded((dir.path() / "none").string())),
              AllOf(HasSubstr("activation_checkpointing.offload.nvme_path"),
                    HasSubstr("none is not a folder")));
  files::write_atomic(dir.path() / "file", "not a folder");
  EXPECT_THAT(refusal("nano", (dir.path() / "file").string()), HasSubstr("file is not a folder"));
  EXPECT_THAT(refusal("nano", (dir.path() / "none").string()),
              AllOf(HasSubstr("offload_optimizer.nvme_path"), HasSubstr("none is not a folder")));
  EXPECT_THAT(refusal("gpt3", dir.path().string()),
              AllOf(HasSubstr("offload_optimizer.nvme_path"), HasSubstr("free, and masters")));
}

// Other models than the plan's, which one rank has, or all.
TEST(Offload, CountsTheRoomOfOtherModels) {
  const files::TempDir dir;
  const auto refusal = [&](std::int64_t bytes, int ranks) -> std::string {
    DiskNeed need{.key = "rl.models.critic.offload.nvme_path",
                  .what = "weights of the critic",
                  .folder = dir.path().string(),
                  .bytes = bytes,
                  .saved = false,
                  .ranks = ranks};
    const Plan plan =
        with(offload_plan("nano", R"("train_batch_size": 4)"), Needs{.disk = {std::move(need)}});
    try {
      check_offload_space(plan, /*ranks=*/4);
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), Error::Kind::Io);
      return error.what();
    }
    return "";
  };
  const auto free = static_cast<std::int64_t>(files::free_bytes(dir.path().string()));

  EXPECT_EQ(refusal(free / 2, 1), "");
  EXPECT_THAT(refusal(free / 2, 3),
              AllOf(HasSubstr("rl.models.critic.offload.nvme_path"),
                    HasSubstr("free, and weights of the critic need")));
  EXPECT_NE(refusal(free / 3, 0), "");
}

TEST(Offload, TellsWhatStaysInMemory) {
  const auto notes = [](const std::string& type) {
    const PlanWithData plan(
        offload_plan("nano",
                     states_offloaded("/tmp") + R"(, "optimizer": {"type": ")" + type + "\"}"),
        {});
    return place(plan, std::uint64_t{1} << 60).notes();
  };

  EXPECT_THAT(notes("Adafactor"), Contains(HasSubstr("the states of Adafactor by rows")));
  EXPECT_THAT(notes("AdamW"), Not(Contains(HasSubstr("stay in memory"))));
  const PlanWithData small(offload_plan("nano", gradients_offloaded("", "16777216")), {});
  EXPECT_THAT(place(small, std::uint64_t{1} << 60).notes(),
              Contains(HasSubstr("all gradients stay in memory")));
  const PlanWithData kept(offload_plan("nano", weights_offloaded("/tmp", R"(, "max_in_cpu": 1e9)")),
                          {});
  EXPECT_THAT(place(kept, std::uint64_t{1} << 60).notes(),
              Contains(HasSubstr("all weights stay in memory")));
}

TEST(FirstTables, SayWhereMastersAndStatesRest) {
  const PlanWithData plan(offload_plan("nano", states_offloaded("/tmp")), {});

  EXPECT_THAT(report::first_table(plan, {}),
              Contains(AllOf(HasSubstr("masters and states rest in /tmp: "),
                             HasSubstr("3 groups in memory"))));
  const PlanWithData gradients(offload_plan("nano", gradients_offloaded()), {});
  EXPECT_THAT(
      report::first_table(gradients, {}),
      Contains(AllOf(HasSubstr("gradients rest in /tmp: "), HasSubstr("7 parts in memory"))));
  const PlanWithData weights(offload_plan("nano", weights_offloaded("/tmp")), {});
  EXPECT_THAT(report::first_table(weights, {}),
              Contains(AllOf(HasSubstr("weights rest in /tmp: "), HasSubstr("3 parts in memory"))));
  EXPECT_THAT(report::first_table(weights, {}), Contains(HasSubstr("a step reads ")));
}

}  // namespace
}  // namespace tessera::planner
