// SPDX-License-Identifier: Apache-2.0
// tessera config: explaining and converting files, pages of documentation.
#include <string>
#include <vector>

#include "cli/program.h"
#include "support/source_dir.h"
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tessera/base/files.h"
#include "tessera/base/text.h"
#include "tessera/config/json.h"
#include "tessera/config/overrides.h"
#include "tessera/interop/option_page.h"
#include "tessera/planner/config_paths.h"
#include "tessera/planner/draft.h"

namespace tessera::cli {
namespace {

using testing::AllOf;
using testing::ContainsRegex;
using testing::HasSubstr;
using testing::Not;

class ConfigCommand : public testing::Test {
 protected:
  std::string write(const std::string& name, const std::string& content) const {
    files::write_atomic(folder_.path() / name, content);
    return (folder_.path() / name).string();
  }
  files::TempDir folder_;
};

// Keys from DeepSpeed's documentation, with typical mistakes of users.
constexpr const char* kDeepSpeedFile = R"({
  // from a tutorial
  "train_batch_size": 16,
  "train_micro_batch_size_per_gpu": 4
  "gradient_accumulation_steps": 2,
  "steps_per_print": 2e3,
  "optimizer": {"type": "AdamW", "params": {"lr": 3e-5, "betas": [0.8, 0.999]}},
  "zero_optimization": {"stage": 2, "overlap_comm": true, "allgather_bucket_size": 5e8},
  "tensorboard": {"enabled": true, "output_path": "logs"},
  "curriculum_learning": {"enabled": true},
})";

TEST_F(ConfigCommand, ExplainsAFileWithoutModelOrData) {
  const std::string file = write("ds.json", kDeepSpeedFile);

  const Outcome o = run_program({"config", "explain", file});

  EXPECT_EQ(o.code, 0) << o.err;
  EXPECT_THAT(o.out,
              HasSubstr("2 ranks, the fewest that close train_batch_size 16 = micro 4 x "
                        "accumulation 2 x ranks 2"));
  EXPECT_THAT(o.out, ContainsRegex("steps_per_print +2000 +.*ds.json:6:22"));
  EXPECT_THAT(o.out, ContainsRegex("optimizer.params.lr +3e-5 +.*ds.json:7:51"));
  EXPECT_THAT(o.out, ContainsRegex("optimizer.params.eps +1e-08 +default"));
  EXPECT_THAT(o.out,
              ContainsRegex("zero_optimization.overlap_comm +true +.*prefetched one block ahead"));
  EXPECT_THAT(o.out, ContainsRegex("curriculum_learning.enabled +true +.*refused: not built yet"));
  EXPECT_THAT(o.out, ContainsRegex("tensorboard.output_path +\"?logs\"? +.*ds.json:9:"));
  EXPECT_THAT(o.out, ContainsRegex("stage3_model_persistence_threshold +no limit +default"));
  EXPECT_THAT(o.out, HasSubstr("data.train: is missing"));
}

TEST_F(ConfigCommand, ExplainsForTheRanksThatAreGiven) {
  const std::string file = write("ds.json", kDeepSpeedFile);

  const Outcome o = run_program({"config", "explain", file, "-n", "4"});

  EXPECT_EQ(o.code, 0);
  EXPECT_THAT(o.out,
              AllOf(HasSubstr("4 ranks, as -n says"),
                    HasSubstr("refused: the batch arithmetic does not close: train_batch_size 16 "
                              "is not micro 4 x accumulation 2 x ranks 4 = 32")));
}

TEST_F(ConfigCommand, StrictFailsWhereTrainWould) {
  const std::string bad = write("bad.json", kDeepSpeedFile);
  const std::string good = write("good.json", R"({"train_batch_size": 4, "dump_state": true})");

  EXPECT_EQ(run_program({"config", "explain", bad, "--strict"}).code, 2);
  EXPECT_EQ(run_program({"config", "explain", good, "--strict"}).code, 0);
}

TEST_F(ConfigCommand, ExplainsWithTheFlagsOfTheTrainer) {
  const std::string file =
      write("ds.json", R"({"train_micro_batch_size_per_gpu": "auto", "bf16": {"enabled": "auto"},
                           "optimizer": {"type": "AdamW", "params": {"lr": "auto"}}})");

  const Outcome open = run_program({"config", "explain", file, "--json"});
  const Outcome said = run_program({"config",
                                    "explain",
                                    "--deepspeed",
                                    file,
                                    "--learning_rate",
                                    "2e-5",
                                    "--per_device_train_batch_size=2",
                                    "--bf16",
                                    "-n",
                                    "3"});

  EXPECT_EQ(open.code, 0);
  EXPECT_THAT(open.out, ContainsRegex("\"optimizer.params.lr\",\n +\"value\": \"auto\""));
  EXPECT_EQ(said.code, 0) << said.err;
  EXPECT_THAT(said.out, ContainsRegex("optimizer.params.lr +2e-5 +--learning_rate"));
  EXPECT_THAT(said.out, ContainsRegex("bf16.enabled +true +--bf16"));
  EXPECT_THAT(said.out, ContainsRegex("train_batch_size +6 +derived: .*ranks 3"));
}

TEST_F(ConfigCommand, UnknownKeysAreWarningsInFilesForDeepSpeedAlone) {
  const std::string pure = write("ds.json", R"({"train_batch_size": 4, "my_tool": {"a": 1}})");
  const std::string ours =
      write("my.json", R"({"train_batch_size": 4, "my_tool": 1, "data": {"train": "a.txt"}})");

  const Outcome warned = run_program({"config", "explain", pure});
  const Outcome refused = run_program({"config", "explain", ours});

  EXPECT_EQ(warned.code, 0);
  EXPECT_THAT(warned.err, AllOf(HasSubstr("warning"), HasSubstr("my_tool: unknown key")));
  EXPECT_EQ(run_program({"config", "explain", pure, "--strict"}).code, 2);
  EXPECT_EQ(refused.code, 2);
  EXPECT_THAT(refused.err, AllOf(HasSubstr("error"), HasSubstr("my_tool: unknown key")));
}

TEST_F(ConfigCommand, FilesThatCannotBeReadAreErrors) {
  EXPECT_EQ(run_program({"config", "explain", write("a.json", "{\"a\": 1, \"a\": 2}")}).code, 2);
  EXPECT_EQ(run_program({"config", "explain", (folder_.path() / "none.json").string()}).code, 2);
  EXPECT_THAT(run_program({"config", "explain", "--strict"}).err, HasSubstr("FILE is missing"));
  EXPECT_EQ(run_program({"config", "explain", write("b.json", "{}"), "-n", "0"}).code, 2);
}

TEST_F(ConfigCommand, HjsonIsReadByItsName) {
  const std::string file =
      write("ds.hjson", "train_batch_size: 8\noptimizer: {\n  type: AdamW\n}\n");

  const Outcome o = run_program({"config", "explain", file});

  EXPECT_EQ(o.code, 0) << o.err;
  EXPECT_THAT(o.out, ContainsRegex("optimizer.type +AdamW +.*ds.hjson:3:9"));
}

TEST_F(ConfigCommand, Base64StandsForAFile) {
  // {"train_batch_size": 8}
  const Outcome o = run_program({"config", "explain", "eyJ0cmFpbl9iYXRjaF9zaXplIjogOH0="});

  EXPECT_EQ(o.code, 0) << o.err;
  EXPECT_THAT(o.out, ContainsRegex("train_batch_size +8 +CONFIG \\(base64\\):1:22"));
}

TEST_F(ConfigCommand, ConvertsAndNamesWhatIsLost) {
  const std::string colossal = write("colossal.py",
                                     "from colossalai.amp import AMP_TYPE\nBATCH_SIZE = 8\n"
                                     "clip_grad_norm = 1.0\ncudnn_benchmark = True\n");

  const Outcome o = run_program({"config", "convert", colossal, "--to", "deepspeed"});

  EXPECT_EQ(o.code, 0);
  EXPECT_EQ(json::parse(o.out, "stdout"),
            json::parse(R"({"train_micro_batch_size_per_gpu": 8, "gradient_clipping": 1.0})",
                        "expected"));
  EXPECT_THAT(o.err, HasSubstr("cudnn_benchmark = true has no counterpart"));
}

// No key here is specific to Colossal-AI: the file type determines the system.
TEST_F(ConfigCommand, ConvertsAnyPythonAsColossals) {
  const std::string file =
      write("c.py", "gradient_accumulation = 4\nparallel = dict(pipeline=2)\n");

  const Outcome o = run_program({"config", "convert", file, "--to", "tessera"});

  EXPECT_EQ(json::parse(o.out, "stdout"),
            json::parse(R"({"gradient_accumulation_steps": 4, "parallel": {"pipeline": 2}})",
                        "expected"));
}

TEST_F(ConfigCommand, ASectionThatIsNullIsNotGiven) {
  const std::string file =
      write("my.json", R"({"train_batch_size": 4, "data": {"train": "a.txt"}, "parallel": null,
                     "eval": null, "tokenizer": null, "zero_optimization": null, "run": null})");

  const Outcome o = run_program({"config", "explain", file, "--strict"});

  EXPECT_EQ(o.code, 0) << o.out << o.err;
}

TEST_F(ConfigCommand, ConvertsToWhatTrainReads) {
  const std::string file = write("ds.json", kDeepSpeedFile);

  const Outcome o = run_program({"config", "convert", file, "--to", "tessera"});
  const std::string converted = write("my.json", o.out);

  EXPECT_EQ(o.code, 0);
  EXPECT_THAT(o.err, AllOf(HasSubstr("overlap_comm"), HasSubstr("curriculum_learning.enabled")));
  EXPECT_EQ(run_program({"config", "explain", converted, "--strict"}).code, 0);
}

TEST_F(ConfigCommand, ConversionsNeedATarget) {
  const std::string file = write("ds.json", "{}");

  EXPECT_THAT(run_program({"config", "convert", file}).err, HasSubstr("--to is missing"));
  EXPECT_THAT(run_program({"config", "convert", file, "--to", "deepsped"}).err,
              HasSubstr("\"deepspeed\""));
}

/// Returns whether a schema has the key of this path, or lets its section have any key.
bool has_key(const json::Value& schema, const std::string& path) {
  const json::Value* at = &schema;
  for (const std::string& key : text::split(path, '.')) {
    const json::Value* const keys = at->find("properties");
    if (keys == nullptr) return true;
    at = keys->find(key);
    if (at == nullptr) return false;
  }
  return true;
}

TEST_F(ConfigCommand, TheSchemaHasEveryKeyOfThePages) {
  const Outcome o = run_program({"config", "schema"});

  ASSERT_EQ(o.code, 0) << o.err;
  const json::Value schema = json::parse(o.out, "schema");
  EXPECT_FALSE(has_key(schema, "trainer.max_stepz"));
  int rows = 0;
  for (const char* page : {"", "deepspeed"}) {
    const Outcome docs = run_program({"config", "docs", page});
    for (const std::string& line : text::split(docs.out, '\n')) {
      if (!line.starts_with("| `")) continue;
      const std::string key = line.substr(3, line.find('`', 3) - 3);
      if (key.find_first_of(" -,*") != std::string::npos) continue;
      EXPECT_TRUE(has_key(schema, key)) << key;
      ++rows;
    }
  }
  EXPECT_GT(rows, 500);
}

TEST_F(ConfigCommand, AFileMayNameItsSchema) {
  const std::string file =
      write("my.json", R"({"$schema": "tessera.schema.json", "train_batch_size": 4,
                     "data": {"train": "a.txt"}})");

  EXPECT_EQ(run_program({"config", "explain", file, "--strict"}).code, 0);
}

TEST_F(ConfigCommand, ExplainsParametersOfOptimizersAndSchedules) {
  for (const char* path : {"optimizer.lr", "optimizer.params.lr"}) {
    const Outcome o = run_program({"config", "explain", path});

    EXPECT_EQ(o.code, 0) << o.err;
    EXPECT_THAT(o.out, AllOf(HasSubstr("optimizer.params.lr: "), HasSubstr("AdamW"))) << path;
  }
  EXPECT_THAT(run_program({"config", "explain", "scheduler.warmup_num_steps"}).out,
              HasSubstr("WarmupLR"));
  EXPECT_THAT(run_program({"config", "explain", "optimizer.tpye"}).err,
              HasSubstr("\"optimizer.type\""));
  EXPECT_THAT(run_program({"config", "explain", "max_steps"}).err,
              HasSubstr("did you mean trainer.max_steps?"));
}

TEST_F(ConfigCommand, PrintsRefusalsInQuietModeToo) {
  const std::string file = write("ds.json", kDeepSpeedFile);

  const Outcome o = run_program({"config", "explain", file, "--strict", "-q"});

  EXPECT_EQ(o.code, 2);
  EXPECT_EQ(o.out, "");
  EXPECT_THAT(o.err,
              AllOf(HasSubstr("curriculum_learning.enabled: not built yet"), HasSubstr("ds.json")));
}

// The folder has no tokenizer, so that the model itself cannot be created.
TEST_F(ConfigCommand, SaysWhatComesFromAFolderThatTrainRefuses) {
  write("config.json", R"({"model_type": "gpt2", "n_layer": 2, "n_embd": 32, "n_head": 4,
                           "n_positions": 48, "n_ctx": 48, "vocab_size": 300})");
  const std::string folder = folder_.path().string();
  const std::string file =
      write("my.json", R"({"model": {"from": ")" + folder + R"("}, "data": {"train":
                                     "a.txt"}, "train_batch_size": 4})");

  const Outcome o = run_program({"config", "explain", file, "--strict"});

  EXPECT_EQ(o.code, 2);
  EXPECT_THAT(o.out, ContainsRegex("model.num_layers +2 +derived: model.from " + folder));
}

TEST_F(ConfigCommand, AMisspeltActionComesWithItsName) {
  const Outcome o = run_program({"config", "explian", "ds.json", "more"});

  EXPECT_EQ(o.code, 2);
  EXPECT_THAT(o.err, HasSubstr("\"explain\""));
}

TEST_F(ConfigCommand, ExplainsKeysAsBefore) {
  const Outcome o = run_program({"config", "explain", "zero_optimization"});

  EXPECT_EQ(o.code, 0);
  EXPECT_THAT(o.out,
              AllOf(HasSubstr("zero_optimization.stage3_prefetch_bucket_size"),
                    Not(HasSubstr("trainer.seed"))));
}

// The documentation promises this for every key.
TEST(NullValues, AreNotGiven) {
  const json::Value whole = json::parse(R"({"model": {"preset": "nano"},
      "data": {"train": "a.txt"}, "train_batch_size": 4, "train_micro_batch_size_per_gpu": 4,
      "scheduler": {"type": "WarmupLR"}})",
                                        "my.json");
  std::vector<std::string> paths = planner::config_paths();
  paths.insert(paths.end(),
               {"optimizer.params.lr",
                "optimizer.params.eps",
                "optimizer.params.betas",
                "scheduler.params.warmup_num_steps"});

  for (const std::string& path : paths) {
    json::Value source = whole;
    config::set_key(source, path, json::Value(), "--set");
    const planner::Draft draft = planner::make_draft(source, 1, "my.json");
    for (const auto& problem : draft.problems.list()) {
      EXPECT_TRUE(problem.kind == config::Problems::Kind::Missing)
          << path << ": " << problem.path << ": " << problem.what;
    }
  }
}

TEST(DeepSpeedPage, IsUpToDate) {
  const std::string page =
      files::read(tessera::test::source_dir().string() + "/docs/coming_from/deepspeed.md");

  // If this fails: build/release/bin/tessera config docs deepspeed > docs/coming_from/deepspeed.md
  EXPECT_EQ(run_program({"config", "docs", "deepspeed"}).out, page);
  EXPECT_EQ(run_program({"config", "docs", "megatorn"}).code, 2);
}

TEST(OptionPages, AreUpToDate) {
  for (const std::string& program : interop::option_pages()) {
    const std::string page =
        files::read(tessera::test::source_dir().string() + "/docs/coming_from/" + program + ".md");
    // If this fails: build/release/bin/tessera config docs PROGRAM > docs/coming_from/PROGRAM.md
    EXPECT_EQ(run_program({"config", "docs", program}).out, page) << program;
  }
}

TEST(LayoutsPage, IsUpToDate) {
  const std::string page =
      files::read(tessera::test::source_dir().string() + "/docs/tables/layouts.md");

  // If this fails: build/release/bin/tessera config docs layouts > docs/tables/layouts.md
  EXPECT_EQ(run_program({"config", "docs", "layouts"}).out, page);
  EXPECT_THAT(page, HasSubstr("| policy, value |"));
  EXPECT_THAT(page, Not(HasSubstr("`vit`")));
}

}  // namespace
}  // namespace tessera::cli
