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
#include "tessera/planner/place.h"
#include "tessera/planner/plan.h"
#include "tessera/report/first_table.h"

namespace tessera::planner {
namespace {

using testing::AllOf;
using testing::Contains;
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
  EXPECT_THAT(refusal("nano", (dir.path() / "none").string()),
              AllOf(HasSubstr("offload_optimizer.nvme_path"), HasSubstr("none is not a folder")));
  EXPECT_THAT(refusal("gpt3", dir.path().string()),
              AllOf(HasSubstr("offload_optimizer.nvme_path"), HasSubstr("free, and masters")));
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
  const PlanWithData weights(offload_plan("nano", weights_offloaded("/tmp")), {});
  EXPECT_THAT(report::first_table(weights, {}),
              Contains(AllOf(HasSubstr("weights rest in /tmp: "), HasSubstr("3 parts in memory"))));
  EXPECT_THAT(report::first_table(weights, {}), Contains(HasSubstr("a step reads ")));
}

}  // namespace
}  // namespace tessera::planner
