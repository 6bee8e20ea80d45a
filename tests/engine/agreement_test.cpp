// SPDX-License-Identifier: Apache-2.0
// Hosts whose files differ although names and sizes are equal: each kind of file that decides the
// result is named.
#include "tessera/engine/agreement.h"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <functional>
#include <string>
#include <vector>

#include "rlhf/support.h"
#include "support/train_runs.h"
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include "tessera/base/files.h"
#include "tessera/base/inputs.h"
#include "tessera/checkpoint/checkpoint.h"
#include "tessera/engine/engine.h"
#include "tessera/planner/course.h"
#include "tessera/planner/place.h"
#include "tessera/planner/plan.h"
#include "tessera/planner/with_data.h"
#include "tessera/rlhf/plan.h"
#include "tessera/text/tokenizer.h"

namespace tessera::engine {
namespace {

namespace fs = std::filesystem;
using test::TinyRun;
using testing::AllOf;
using testing::Each;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;
using testing::SizeIs;

/// The facts of a host as it would tell them before its ranks begin.
std::vector<hosts::Fact> facts_of_host(const TinyRun& run) {
  const planner::Plan made = run.plan({});
  const auto data = open_data(made, {});
  const planner::PlanWithData plan = planner::place(planner::with_data(made, *data));
  return facts_of(plan, *data, ResumePoint{}, {});
}

std::vector<std::string> told(const std::vector<hosts::Fact>& facts,
                              const std::vector<hosts::Fact>& of_first) {
  std::vector<std::string> out;
  for (const hosts::FactDifference& one : hosts::differences("b", facts, "a", of_first))
    out.push_back(one.what);
  return out;
}

/// Changes a byte of the file in its middle, and neither its name nor its size.
void change(const fs::path& file) {
  std::string content = files::read(file);
  char& byte = content[content.size() / 2];
  byte = byte == 'x' ? 'y' : 'x';
  std::ofstream(file, std::ios::binary) << content;
}

/// One kind of file that decides the result.
struct Case {
  std::string what;                           ///< as it is reported
  std::function<fs::path(TinyRun& run)> use;  ///< configures the run; returns the file
};

std::string quoted(const fs::path& path) {
  return "\"" + path.string() + "\"";
}
fs::path text_file(const TinyRun& run, const std::string& name) {
  const fs::path path = run.folder() / name;
  fs::copy_file(run.folder() / "text.txt", path);
  return path;
}

/// Trains a step of a run, and returns a file of the checkpoint that decides its contents.
fs::path manifest_of(const TinyRun& run, const std::string& name) {
  const fs::path root = run.folder() / name;
  (void)run.train({}, 1, root);
  return *checkpoint::newest(root) / "manifest.json";
}

std::vector<Case> cases() {
  return {
      {"data.train", [](TinyRun& run) { return run.folder() / "text.txt"; }},
      {"data.validation",
       [](TinyRun& run) {
         const fs::path file = text_file(run, "validation.txt");
         run.set("data.validation_fraction", "0").set("data.validation", "[" + quoted(file) + "]");
         return file;
       }},
      {"data.test",
       [](TinyRun& run) {
         const fs::path file = text_file(run, "test.txt");
         run.set("data.test", "[" + quoted(file) + "]");
         return file;
       }},
      {"data.sources",
       [](TinyRun& run) {
         const fs::path file = text_file(run, "source.txt");
         run.set("data",
                 R"({"sequence_length": 16, "validation_fraction": 0.2, "sources": [{"path": )" +
                     quoted(run.folder() / "text.txt") + R"(, "weight": 1}, {"path": )" +
                     quoted(file) + R"(, "weight": 2}]})");
         return file;
       }},
      {"tokenizer",
       [](TinyRun& run) {
         const fs::path file = run.folder() / "tokenizer.json";
         files::write_atomic(file, text::byte_tokenizer_json());
         files::write_atomic(run.folder() / "tokenizer_config.json", R"({"eos_token": "!"})");
         run.set("tokenizer", R"({"type": "file", "vocab": )" + quoted(file) + "}");
         return file;
       }},
      {"reward program", [](TinyRun& run) {
         const fs::path file = run.folder() / "score.sh";
         files::write_atomic(file, "#!/bin/sh\ncat >/dev/null # ...............................\n");
         chmod(file.c_str(), 0700);
         run = test::reinforcing(test::some_prompts(),
                                 R"({"algorithm": "grpo", "samples": 2, "max_new_tokens": 2,
                                     "prompts_at_once": 1, "completions_at_once": 2,
                                     "rewards": [{"type": "command", "command": ["sh", )" +
                                     quoted(file) + "]}]}");
         return file;
       }}};
}

TEST(Agreement, NamesEveryKindOfFileWhoseContentsDiffer) {
  for (const Case& one : cases()) {
    SCOPED_TRACE(one.what);
    const TinyRun keeps;  // its folder outlives a run that is replaced
    TinyRun run = keeps;
    const fs::path file = one.use(run);
    const std::vector<hosts::Fact> first = facts_of_host(run);
    EXPECT_THAT(told(facts_of_host(run), first), IsEmpty()) << "equal hosts";

    if (one.what == "tokenizer") {
      // Another order of two tokens.
      std::string content = files::read(file);
      const std::size_t a = content.find("\"a\""), b = content.find("\"b\"");
      ASSERT_NE(a, std::string::npos);
      ASSERT_NE(b, std::string::npos);
      content[a + 1] = 'b';
      content[b + 1] = 'a';
      files::write_atomic(file, content);
    } else {
      change(file);
    }

    EXPECT_THAT(told(facts_of_host(run), first), AllOf(Not(IsEmpty()), Each(HasSubstr(one.what))));
  }
}

/// A model, under the key that names it.
struct ModelCase {
  std::string what;
  std::function<void(TinyRun& run, const std::string& checkpoint)> use;
};

std::vector<ModelCase> model_cases() {
  const auto rl = [](const std::string& rest) {
    return R"({"samples": 2, "max_new_tokens": 2, "prompts_at_once": 1, "completions_at_once": 2,
               "rewards": [{"type": "length"}], )" +
           rest + "}";
  };
  return {
      {"model.from",
       [](TinyRun& run, const std::string& from) { run.set("model", "{\"from\": " + from + "}"); }},
      {"distill.teacher",
       [](TinyRun& run, const std::string& from) {
         run.set("distill", "{\"teacher\": " + from + "}");
       }},
      {"reference",
       [rl](TinyRun& run, const std::string& from) {
         run = test::reinforcing(
             test::some_prompts(),
             rl(R"("algorithm": "grpo", "kl": {"coefficient": 0.1}, "reference": )" + from));
       }},
      {"critic", [rl](TinyRun& run, const std::string& from) {
         run = test::reinforcing(test::some_prompts(),
                                 rl(R"("algorithm": "ppo", "critic": {"from": )" + from + "}"));
       }}};
}

TEST(Agreement, NamesEveryModelWhoseWeightsDiffer) {
  TinyRun base;
  base.set("model.dropout", "0");
  const fs::path manifest = manifest_of(base, "base");
  const std::string checkpoint = quoted(manifest.parent_path());
  for (const ModelCase& one : model_cases()) {
    SCOPED_TRACE(one.what);
    TinyRun run;
    one.use(run, checkpoint);
    const std::vector<hosts::Fact> first = facts_of_host(run);
    EXPECT_THAT(told(facts_of_host(run), first), IsEmpty()) << "equal hosts";
    const auto is_manifest = [&](const hosts::Fact& fact) {
      return fact.where == manifest.string() && fact.what.find(one.what) != std::string::npos;
    };
    ASSERT_TRUE(std::ranges::any_of(first, is_manifest));

    // The manifest holds the checksums of all weights.
    std::vector<hosts::Fact> other = first;
    std::ranges::find_if(other, is_manifest)->value = "another";

    EXPECT_THAT(told(other, first), AllOf(SizeIs(1), Each(HasSubstr(one.what))));
  }
}

TEST(Agreement, NamesAKeyThatDiffersWithBothValues) {
  TinyRun run;
  const std::vector<hosts::Fact> first = facts_of_host(run);
  run.set("optimizer.params.lr", "2e-3").set("run.threads_per_rank", "2");

  EXPECT_THAT(
      told(facts_of_host(run), first),
      AllOf(SizeIs(1),
            Each(HasSubstr("optimizer.params.lr differs: 0.002 on host b, 0.001 on host a"))));
}

/// Samples that are read from files while training.
class Read final : public data::Dataset {
 public:
  explicit Read(fs::path file) : file_(std::move(file)) {}
  [[nodiscard]] std::string name() const override { return "read"; }
  [[nodiscard]] std::int64_t size() const override { return 1; }
  [[nodiscard]] std::vector<data::TensorSpec> tensors() const override { return {}; }
  void read(std::int64_t /*index*/, data::SampleWriter& /*out*/) const override {}
  [[nodiscard]] std::vector<fs::path> files() const override { return {file_}; }

 private:
  fs::path file_;
};

TEST(Agreement, NamesFilesThatSamplesAreReadFromLater) {
  const TinyRun run;
  const fs::path file = run.folder() / "picture";
  files::write_atomic(file, "pixels");
  data::Datasets sets;
  sets.train = std::make_unique<Read>(file);
  const planner::PlanWithData plan(run.plan({}), {});
  const std::vector<hosts::Fact> first = facts_of(plan, sets, ResumePoint{}, {});

  change(file);

  EXPECT_THAT(told(facts_of(plan, sets, ResumePoint{}, {}), first),
              AllOf(SizeIs(1), Each(HasSubstr(file.string()))));
}

}  // namespace
}  // namespace tessera::engine
