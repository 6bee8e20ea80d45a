// SPDX-License-Identifier: Apache-2.0
// inspect, compare and checkpoint on folders created here.
#include <filesystem>
#include <fstream>
#include <string>
#include <utility>
#include <vector>

#include "checkpoint/nodes.h"
#include "support/source_dir.h"
#include <fmt/format.h>
#include <gtest/gtest.h>

#include "tessera/base/error.h"
#include "tessera/base/files.h"
#include "tessera/checkpoint/checkpoint.h"
#include "tessera/checkpoint/safetensors.h"
#include "tessera/cli/command.h"
#include "tessera/config/json.h"

namespace tessera::cli {
namespace {

namespace fs = std::filesystem;

void write(const fs::path& path, const std::string& content) {
  std::ofstream(path, std::ios::binary) << content;
}

struct Ran {
  int code = 0;
  std::string out;
};
Ran run(const std::string& command, const std::vector<std::string>& words) {
  testing::internal::CaptureStdout();
  int code = 0;
  try {
    code = commands().get(command).run(words);
  } catch (const Error& error) {
    code = exit_code(error.kind());
    std::fputs(error.text().c_str(), stdout);
  }
  std::fflush(stdout);
  return {code, testing::internal::GetCapturedStdout()};
}

const char* kMetrics =
    "{\"step\":1,\"loss\":4.5,\"lr\":0.001,\"step_ms\":10.5,\"tokens_per_s\":100,\"mem_peak_"
    "bytes\":7,\"comm_share\":0.5}\n"
    "{\"step\":2,\"loss\":4.25,\"lr\":0.001,\"step_ms\":11.5,\"tokens_per_s\":90,\"mem_peak_"
    "bytes\":7,\"comm_share\":0.5}\n"
    "{\"step\":2,\"eval_loss\":4.125,\"time\":17}\n";

/// A run folder with metrics and one checkpoint of two tensors.
fs::path make_run(const fs::path& dir, float weight = 1.5F, const std::string& metrics = kMetrics) {
  fs::create_directories(dir);
  write(dir / "metrics.jsonl", metrics);
  std::vector<float> w = {weight, 2.0F, 3.0F, 4.0F}, state = {0.5F, 0.5F, 0.5F, 0.5F};
  const mesh::Piece all{mesh::whole({2, 2}), 0, 4};
  const std::vector<checkpoint::PieceBytes> pieces = {
      {"w", DType::F32, {2, 2}, all, std::as_writable_bytes(std::span(w))},
      {"optimizer.exp_avg.w", DType::F32, {2, 2}, all, std::as_writable_bytes(std::span(state))}};
  checkpoint::Meta meta;
  meta.step = 2;
  meta.samples = 24;
  checkpoint::save(dir / "checkpoints", meta, pieces, {});
  return dir;
}

std::string replaced(std::string text, const std::string& from, const std::string& to) {
  return text.replace(text.find(from), from.size(), to);
}

class Commands : public testing::Test {
 protected:
  fs::path path(const std::string& name) const { return dir_.path() / name; }

 private:
  files::TempDir dir_;
};

TEST_F(Commands, CompareFindsARunEqualToItself) {
  const Ran ran = run("compare", {make_run(path("a")), make_run(path("b"))});

  EXPECT_EQ(ran.code, 0) << ran.out;
  EXPECT_NE(ran.out.find("equal"), std::string::npos);
}

TEST_F(Commands, CompareDoesNotLookAtClocks) {
  std::string other = replaced(kMetrics, "\"step_ms\":10.5", "\"step_ms\":99");
  other = replaced(other, "\"tokens_per_s\":100", "\"tokens_per_s\":1");
  other = replaced(other, ",\"comm_share\":0.5", "");
  other = replaced(other, "\"time\":17", "\"time\":18");
  other = replaced(other, "\"mem_peak_bytes\":7", "\"mem_peak_bytes\":8");

  const Ran ran = run("compare", {make_run(path("a")), make_run(path("b"), 1.5F, other)});

  EXPECT_EQ(ran.code, 0) << ran.out;
}

TEST_F(Commands, CompareNamesTheFirstMetricThatDiffers) {
  const std::string other = replaced(kMetrics, "4.25", "4.250001");

  const Ran ran = run("compare", {make_run(path("a")), make_run(path("b"), 1.5F, other)});

  EXPECT_EQ(ran.code, 1);
  EXPECT_NE(ran.out.find("line 2 (step 2): loss is 4.25 in A and 4.250001 in B"), std::string::npos)
      << ran.out;
}

TEST_F(Commands, CompareNamesALineThatIsMissing) {
  const std::string all = kMetrics, shorter = all.substr(0, all.find('\n') + 1);

  const Ran ran = run("compare", {make_run(path("a")), make_run(path("b"), 1.5F, shorter)});

  EXPECT_EQ(ran.code, 1);
  EXPECT_NE(ran.out.find("line 2 (step 2) is only in A: A has 3 lines and B 1"), std::string::npos)
      << ran.out;
}

TEST_F(Commands, CompareNamesTheFirstTensorThatDiffers) {
  const Ran ran = run("compare", {make_run(path("a")), make_run(path("b"), 1.75F)});

  EXPECT_EQ(ran.code, 1);
  EXPECT_NE(ran.out.find("tensor w at step 2 is F32 [2,2] xxh3:"), std::string::npos) << ran.out;
}

TEST_F(Commands, CompareShowsHowUnequalRunsDiffer) {
  const auto metrics = [](double shift, int steps) {
    std::string out;
    for (int step = 1; step <= steps; ++step)
      out += fmt::format(
          "{{\"step\":{},\"loss\":{}}}\n", step, 10.0 - step + (step == 3 ? shift : shift / 8));
    return out + fmt::format("{{\"step\":2,\"eval_loss\":{}}}\n", 7.0 + shift);
  };
  const fs::path a = make_run(path("a"), 1.5F, metrics(0, 4)),
                 b = make_run(path("b"), 1.5F, metrics(0.5, 6));
  write(a / "config.json",
        R"({"optimizer": {"params": {"lr": 0.001}}, "run": {"dir": "a"}, "trainer": {"seed": 1}})");
  write(
      b / "config.json",
      R"({"optimizer": {"params": {"lr": 0.01}}, "run": {"dir": "b"}, "trainer": {"seed": 1}, "x": 2})");

  const Ran ran = run("compare", {a.string(), b.string()});
  const json::Value found =
      json::parse_strict(run("compare", {a.string(), b.string(), "--json"}).out, "out");

  EXPECT_EQ(ran.code, 1);
  for (const char* part :
       {"different: metrics line 1 (step 1): loss is 9 in A",
        "  optimizer.params.lr  0.001 in A, 0.01 in B\n",
        "  x                    - in A, 2 in B\n",
        "  step 1           9.000000     9.062500    +6.25e-02\n",
        "  largest difference 5.00e-01 at step 3, final difference 6.25e-02 at step 4\n",
        "  step 2           7.000000     7.500000    +5.00e-01\n"})
    EXPECT_NE(ran.out.find(part), std::string::npos) << part << " in\n" << ran.out;
  EXPECT_EQ(ran.out.find("run.dir"), std::string::npos);
  EXPECT_EQ(ran.out.find("trainer.seed"), std::string::npos);
  EXPECT_EQ(found.find("configuration")->items().size(), 2U);
  EXPECT_EQ(found.find("loss")->find("largest")->find("step")->as_integer(), 3);
  EXPECT_EQ(found.find("loss")->find("steps")->as_integer(), 4);
  EXPECT_EQ(found.find("eval_loss")->find("final")->find("b")->as_double(), 7.5);
}

TEST_F(Commands, CompareWantsSomethingToCompare) {
  fs::create_directories(path("empty"));

  EXPECT_EQ(run("compare", {path("empty"), path("empty")}).code, 4);
  EXPECT_EQ(run("compare", {path("absent"), path("empty")}).code, 4);
  const fs::path made = make_run(path("a"));
  for (const fs::path& other : {path("empty"), made / "metrics.jsonl"}) {
    for (const auto& [a, b] : {std::pair(other, made), std::pair(made, other)}) {
      const Ran ran = run("compare", {a.string(), b.string()});
      EXPECT_EQ(ran.code, 4);
      EXPECT_NE(ran.out.find(other.string() + " is neither a run nor a checkpoint"),
                std::string::npos)
          << ran.out;
    }
  }
  // A run that was stopped before its first step.
  write(path("empty") / "status.json", "{}");
  EXPECT_EQ(run("compare", {path("empty"), made}).code, 1);
}

TEST_F(Commands, InspectCountsAndDigestsTheNewestCheckpoint) {
  const fs::path made = make_run(path("a"));

  const Ran table = run("inspect", {made}), digest = run("inspect", {made, "--digest"});
  const json::Value parsed = json::parse_strict(run("inspect", {made, "--json"}).out, "out");

  EXPECT_NE(table.out.find("step-00000002"), std::string::npos) << table.out;
  EXPECT_EQ(parsed.find("step")->as_integer(), 2);
  EXPECT_EQ(parsed.find("samples")->as_integer(), 24);
  EXPECT_EQ(parsed.find("parameters")->as_integer(), 4);
  EXPECT_EQ(parsed.find("tensors")->as_integer(), 2);
  EXPECT_EQ(parsed.find("bytes")->as_integer(), 32);
  const auto lines = checkpoint::Checkpoint(made / "checkpoints/step-00000002").digest();
  EXPECT_EQ(digest.out, lines[0] + "\n" + lines[1] + "\n");
}

TEST_F(Commands, InspectReadsFilesAndFoldersOfOthers) {
  const fs::path golden = tessera::test::source_dir() / "tests/golden/reference/models";

  const Ran file = run("inspect", {golden / "gpt2/model.safetensors", "--digest"});
  const Ran folder = run("inspect", {golden / "gpt2", "--digest"});
  const Ran sharded = run("inspect", {golden / "llama_bf16_sharded"});

  EXPECT_EQ(file.code, 0) << file.out;
  EXPECT_EQ(file.out, folder.out);
  EXPECT_NE(file.out.find("transformer.wte.weight F32 ["), std::string::npos) << file.out;
  EXPECT_EQ(sharded.code, 0) << sharded.out;
  EXPECT_NE(sharded.out.find("files        2"), std::string::npos) << sharded.out;
}

TEST_F(Commands, InspectSaysWhatItExpectedElse) {
  write(path("note.txt"), "hello");

  const Ran ran = run("inspect", {path("note.txt")});

  EXPECT_EQ(ran.code, 4);
  EXPECT_NE(ran.out.find("is not a run"), std::string::npos) << ran.out;
  EXPECT_EQ(run("inspect", {path("absent")}).code, 4);
}

TEST_F(Commands, VerifyFindsDamageAndListCounts) {
  const fs::path made = make_run(path("a"));
  const fs::path shard = made / "checkpoints/step-00000002/rank-00000.safetensors";
  EXPECT_EQ(run("checkpoint", {"verify", made}).code, 0);
  EXPECT_NE(run("checkpoint", {"list", made}).out.find("step 2"), std::string::npos);

  std::string bytes = files::read(shard);
  bytes.back() = static_cast<char>(bytes.back() ^ 1);
  write(shard, bytes);
  const Ran ran = run("checkpoint", {"verify", made});

  EXPECT_EQ(ran.code, 4);
  EXPECT_NE(ran.out.find("rank-00000.safetensors"), std::string::npos) << ran.out;
  EXPECT_NE(ran.out.find("tensor \"w\""), std::string::npos) << ran.out;
}

TEST_F(Commands, ListShowsIntactAndDamagedCheckpoints) {
  const fs::path made = make_run(path("a"));
  const fs::path checkpoints = made / "checkpoints";
  fs::copy(checkpoints / "step-00000002", checkpoints / "step-00000001");
  write(checkpoints / "step-00000001" / "manifest.json", "{");

  const Ran ran = run("checkpoint", {"list", made});

  EXPECT_EQ(ran.code, 4);
  EXPECT_NE(ran.out.find("step 2"), std::string::npos) << ran.out;
  EXPECT_NE(ran.out.find("damaged  "), std::string::npos) << ran.out;
  EXPECT_NE(ran.out.find("step-00000001/manifest.json"), std::string::npos) << ran.out;
}

TEST_F(Commands, ListRefusesWhatIsNotARun) {
  fs::create_directories(path("model"));
  fs::create_directories(path("young") / "checkpoints");
  write(path("young") / "status.json", "{}");

  const Ran ran = run("checkpoint", {"list", path("model")});

  EXPECT_EQ(ran.code, 4);
  EXPECT_NE(ran.out.find("holds no complete checkpoint"), std::string::npos) << ran.out;
  EXPECT_EQ(run("checkpoint", {"list", path("young")}).code, 0);
}

TEST_F(Commands, MergeMakesOneFileOfAllRanks) {
  const fs::path made = make_run(path("a"));
  const std::string before = run("inspect", {made, "--digest"}).out;

  const Ran ran = run("checkpoint", {"merge", made, path("one")});

  EXPECT_EQ(ran.code, 0) << ran.out;
  EXPECT_EQ(run("inspect", {path("one"), "--digest"}).out, before);
  EXPECT_EQ(run("checkpoint", {"verify", path("one")}).code, 0);
  EXPECT_NE(before.find("xxh3"), std::string::npos);
  EXPECT_EQ(run("checkpoint", {"merge", made, path("one")}).code, 2);
  EXPECT_EQ(run("checkpoint", {"merge", made}).code, 2);
  EXPECT_EQ(run("checkpoint", {"verfy", made}).code, 2);
}

TEST_F(Commands, MergeRemovesWhatOneThatWasKilledLeft) {
  const fs::path made = make_run(path("a"));
  const fs::path left = path(".tmp-one-4194305");  // larger than any process number
  fs::create_directories(left);
  write(left / "rank-00000.safetensors", "half");

  EXPECT_EQ(run("checkpoint", {"merge", made, path("one")}).code, 0);

  EXPECT_FALSE(fs::exists(left));
}

TEST_F(Commands, MergeJoinsWhatLiesOnSeveralDisks) {
  const fs::path made = make_run(path("a")) / "checkpoints/step-00000002";
  const std::string before = run("inspect", {made, "--digest"}).out;
  const fs::path other = path("other");
  fs::create_directory(other);
  fs::rename(made / "rank-00000.safetensors", other / "rank-00000.safetensors");

  const Ran alone = run("checkpoint", {"merge", made, path("alone")});

  EXPECT_EQ(alone.code, 4);
  EXPECT_NE(alone.out.find("rank-00000.safetensors does not exist"), std::string::npos)
      << alone.out;
  EXPECT_NE(alone.out.find("name every folder that holds a part"), std::string::npos) << alone.out;
  EXPECT_EQ(run("checkpoint", {"merge", made, other, path("one")}).code, 0);
  EXPECT_EQ(run("checkpoint", {"merge", other, made, path("two")}).code, 0);

  EXPECT_EQ(run("inspect", {path("one"), "--digest"}).out, before);
  EXPECT_EQ(run("inspect", {path("two"), "--digest"}).out, before);
  EXPECT_NE(run("checkpoint", {"merge", other, path("bare")}).out.find("manifest.json"),
            std::string::npos);
  fs::copy_file(make_run(path("b"), 9.0F) / "checkpoints/step-00000002/manifest.json",
                other / "manifest.json");
  const Ran mixed = run("checkpoint", {"merge", made, other, path("mixed")});
  EXPECT_EQ(mixed.code, 4);
  EXPECT_NE(mixed.out.find("belong to different checkpoints"), std::string::npos) << mixed.out;
}

TEST_F(Commands, VerifyNamesThePartOfAHostThatIsMissingAndMergeJoinsThem) {
  const checkpoint::test::Nodes nodes;
  nodes.save(2);
  const fs::path first = nodes.part(0, 2), second = nodes.part(1, 2);

  const Ran alone = run("checkpoint", {"verify", first});
  const Ran lacking = run("checkpoint", {"merge", first, path("lacking")});
  const Ran merged = run("checkpoint", {"merge", second, first, path("one")});

  for (const Ran& ran : {alone, lacking}) {
    EXPECT_EQ(ran.code, 4);
    EXPECT_NE(ran.out.find("node-00001.json"), std::string::npos) << ran.out;
    EXPECT_NE(ran.out.find("tessera checkpoint merge"), std::string::npos) << ran.out;
  }
  EXPECT_EQ(merged.code, 0) << merged.out;
  EXPECT_EQ(run("checkpoint", {"verify", path("one")}).code, 0);
  EXPECT_TRUE(checkpoint::test::loads_exactly(path("one")));
}

TEST_F(Commands, MergeOfADamagedCheckpointLeavesNothing) {
  const fs::path made = make_run(path("a"));
  const fs::path shard = made / "checkpoints/step-00000002/rank-00000.safetensors";
  std::string bytes = files::read(shard);
  bytes.back() = static_cast<char>(bytes.back() ^ 1);
  write(shard, bytes);

  EXPECT_EQ(run("checkpoint", {"merge", made, path("one")}).code, 4);

  for (const auto& entry : fs::directory_iterator(fs::path(path("one")).parent_path()))
    EXPECT_EQ(entry.path().filename().string().find("one"), std::string::npos) << entry.path();
}

}  // namespace
}  // namespace tessera::cli
