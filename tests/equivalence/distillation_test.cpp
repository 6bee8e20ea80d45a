// SPDX-License-Identifier: Apache-2.0
// labels: slow
// A teacher of the model that is trained: the same bits on any number of ranks and after a
// resume.
#include <filesystem>
#include <string>
#include <vector>

#include "equivalence/within_rounding.h"
#include "support/train_runs.h"
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tessera/base/error.h"
#include "tessera/checkpoint/checkpoint.h"

namespace tessera::test {
namespace {

namespace fs = std::filesystem;

/// A student, and a teacher with the student's tokenizer that was trained for a while.
class Distillation : public ::testing::Test {
 protected:
  Distillation() {
    (void)teacher_run_.train({}, 4, teacher_.path());
    student_.set("distill.teacher", "\"" + checkpoint::newest(teacher_.path())->string() + "\"")
        .set("trainer.seed", "11");
  }
  static std::vector<float> values(const fs::path& root, const std::string& name) {
    const checkpoint::Checkpoint opened(*checkpoint::newest(root));
    for (const auto& tensor : opened.tensors()) {
      if (tensor.name == name) return opened.values(tensor);
    }
    ADD_FAILURE() << "no " << name;
    return {};
  }

  TinyRun teacher_run_, student_;
  files::TempDir teacher_;
};

TEST_F(Distillation, GivesTheSameBitsInEveryLayoutAndAfterAResume) {
  for (const char* bf16 : {"false", "true"}) {
    student_.set("bf16.enabled", bf16);
    const Trace one = student_.train({.ranks = 1, .accumulation = 4, .stage = 0}, 4);
    for (const Layout& layout : std::vector<Layout>{{.ranks = 2, .accumulation = 2, .stage = 1},
                                                    {.ranks = 4, .accumulation = 1, .stage = 3}}) {
      SCOPED_TRACE(bf16 + std::to_string(layout.ranks));
      expect_same_bits(one, student_.train(layout, 4));
    }
    const files::TempDir saved;
    (void)student_.train({.ranks = 2, .accumulation = 2, .stage = 2}, 2, saved.path());
    const Trace resumed = student_.train(
        {.ranks = 1, .accumulation = 4, .stage = 0}, 4, {}, *checkpoint::newest(saved.path()));
    EXPECT_EQ(resumed.digest, one.digest);
  }
}

TEST_F(Distillation, WorksInAPipelineToTheBit) {
  const Trace one = student_.train({.ranks = 1, .accumulation = 4}, 3);
  const Trace two = student_.train({.ranks = 2, .accumulation = 4, .pipeline = "2"}, 3);

  EXPECT_EQ(two.losses, one.losses);
  EXPECT_EQ(two.grad_norms, one.grad_norms);
}

TEST_F(Distillation, IsThatOfOneRankWhereRanksShareLayersAndTokens) {
  expect_same(student_,
              {{.ranks = 2, .tensor = 2},
               {.ranks = 4, .stage = 3, .tensor = 2, .sequence = true},
               {.ranks = 2, .context = 2},
               {.ranks = 2, .context = 2, .context_mode = "ulysses"},
               {.ranks = 4, .tensor = 4, .mode = "2d"},
               {.ranks = 8, .micro_batch = 4, .tensor = 8, .mode = "3d"},
               {.ranks = 8, .accumulation = 2, .pipeline = "2", .tensor = 2, .context = 2}});
}

TEST_F(Distillation, FromItselfHasNoLossAndNoGradient) {
  // Dropout would make another model of the student.
  TinyRun run;
  run.set("model.dropout", "0.0");
  const files::TempDir first;
  (void)run.train({}, 3, first.path());
  run.set("distill.teacher", "\"" + checkpoint::newest(first.path())->string() + "\"")
      .set("model.from", "\"" + checkpoint::newest(first.path())->string() + "\"")
      .set("distill.alpha", "1.0");

  const Trace trace = run.train({}, 1);

  // fp32 rounding of log-softmax values over 256 and more tokens.
  EXPECT_NEAR(trace.losses.front(), 0.0, 1e-5);
  EXPECT_NEAR(trace.grad_norms.front(), 0.0, 1e-4);
}

TEST_F(Distillation, LearnsTheTeacher) {
  student_.set("distill.alpha", "1.0").set("optimizer.params.lr", "1e-2");

  const Trace trace = student_.train({}, 12);

  EXPECT_LT(trace.losses.back(), 0.7 * trace.losses.front());
}

TEST_F(Distillation, BeginsWithChosenLayersOfTheTeacher) {
  TinyRun run;
  run.set("distill",
          R"({"layers": [1], "teacher": ")" + checkpoint::newest(teacher_.path())->string() + "\"}")
      .set("model", "{}")
      .set("optimizer.params.lr", "0.0")
      .set("optimizer.params.weight_decay", "0.0");
  const files::TempDir saved;

  (void)run.train({.ranks = 2, .stage = 3}, 1, saved.path());

  for (const char* name : {"wte.weight", "wpe.weight", "ln_f.weight"})
    EXPECT_EQ(values(saved.path(), name), values(teacher_.path(), name)) << name;
  for (const char* name : {"attn.c_attn.weight", "mlp.c_proj.bias", "ln_2.weight"}) {
    EXPECT_EQ(values(saved.path(), std::string("h.0.") + name),
              values(teacher_.path(), std::string("h.1.") + name))
        << name;
  }
  EXPECT_FALSE(checkpoint::Checkpoint(*checkpoint::newest(saved.path())).has("h.1.ln_1.weight"));
}

/// A task and the fields of its records.
struct TaskRow {
  const char* name;
  const char* family;
  const char* task;
  const char* fields;  ///< of a record, after its text; {0} is a number, {1} that modulo 3
};

constexpr TaskRow kTaskRows[] = {
    {"classify", "gpt2", R"("classify")", R"("label": "{1}")"},
    {"weighted",
     "bert",
     R"({"type": "classify", "params": {"class_balance": "inverse"}})",
     R"("label": "{1}")"},
    {"multi_label",
     "gpt2",
     R"({"type": "classify", "params": {"multi_label": true, "labels": ["0", "1", "2"]}})",
     R"("label": ["{1}", "2"])"},
    {"heads",
     "gpt2",
     R"({"type": "classify", "params": {"heads": {"topic": ["0", "1", "2"], "mood": ["0", "1", "2"]},
         "head_weights": {"mood": 0.5}}})",
     R"("topic": "{1}", "mood": "0")"},
    {"regression", "bert", R"("regression")", R"("label": {0})"},
    {"numbers",
     "gpt2",
     R"({"type": "regression", "params": {"numbers": 2}})",
     R"("label": [{0}, -{1}])"},
    {"tag", "bert", R"("tag")", R"("tokens": ["ab", "c"], "tags": ["X", "{1}"])"},
    {"masked_lm",
     "bert",
     R"({"type": "masked_lm", "params": {"mask_token_id": 7}})",
     R"("other": 0)"},
};

class DistilledTask : public ::testing::TestWithParam<TaskRow> {
 protected:
  DistilledTask() { (void)teacher_run_.train({}, 3, teacher_.path()); }

  static TinyRun run_of(const TaskRow& row) {
    TinyRun run;
    std::string lines;
    for (int i = 0; i < 40; ++i) {
      const std::string text(static_cast<std::size_t>(5 + i % 9), static_cast<char>('a' + i % 5));
      std::string fields = row.fields;
      for (const auto& [what, with] : {std::pair{"{0}", std::to_string(0.25 * (i % 7))},
                                       std::pair{"{1}", std::to_string(i % 3)}}) {
        for (auto at = fields.find(what); at != std::string::npos; at = fields.find(what))
          fields.replace(at, 3, with);
      }
      lines += fmt::format("{{\"text\": \"{}\", {}}}\n", text, fields);
    }
    const std::filesystem::path path = run.folder() / "records.jsonl";
    files::write_atomic(path, lines);
    run.set("model", R"({"num_layers": 2, "hidden_size": 32, "num_heads": 4, "max_positions": 16})")
        .set("model.family", fmt::format("\"{}\"", row.family))
        .set("task", row.task)
        .set("data.train", "\"" + path.string() + "\"");
    return run.set("model.dropout", "0.0");
  }
  [[nodiscard]] std::string teacher() const {
    return "\"" + checkpoint::newest(teacher_.path())->string() + "\"";
  }

  TinyRun teacher_run_ = run_of(GetParam());
  files::TempDir teacher_;
};

TEST_P(DistilledTask, FromItselfHasNoLossAndNoGradient) {
  TinyRun run = teacher_run_;
  run.set("distill.teacher", teacher()).set("model.from", teacher()).set("distill.alpha", "1.0");

  const Trace trace = run.train({}, 1);

  // fp32 rounding of log-softmax values.
  EXPECT_NEAR(trace.losses.front(), 0.0, 1e-5);
  EXPECT_NEAR(trace.grad_norms.front(), 0.0, 1e-4);
}

TEST_P(DistilledTask, LearnsTheTeacherToTheSameBitsOnAnyRanks) {
  constexpr int kSteps = 24;
  TinyRun student = run_of(GetParam());
  student.set("distill.teacher", teacher())
      .set("distill.alpha", "1.0")
      .set("optimizer.params.lr", "1e-2")
      .set("trainer.seed", "11");

  const Trace one = student.train({.ranks = 1, .accumulation = 4, .stage = 0}, kSteps);
  const Trace two = student.train({.ranks = 2, .accumulation = 2, .stage = 3}, kSteps);

  expect_same_bits(one, two);
  // Batches differ, so that a single loss says little.
  const double first = (one.losses[0] + one.losses[1]) / 2,
               last = (one.losses[kSteps - 2] + one.losses[kSteps - 1]) / 2;
  EXPECT_LT(last, 0.7 * first);
}

TEST_P(DistilledTask, LearnsTheSameWhereRanksShareLayersAndTokens) {
  TinyRun student = run_of(GetParam());
  student.set("distill.teacher", teacher()).set("trainer.seed", "11");
  for (const Layout& layout : std::vector<Layout>{{.ranks = 2, .tensor = 2},
                                                  {.ranks = 2, .context = 2},
                                                  {.ranks = 4, .tensor = 4, .mode = "2d"}}) {
    SCOPED_TRACE(text_of(layout));
    expect_close(student.train(one_rank(layout), 3), student.train(layout, 3), kLoss);
  }
}

INSTANTIATE_TEST_SUITE_P(Tasks,
                         DistilledTask,
                         ::testing::ValuesIn(kTaskRows),
                         [](const auto& info) { return std::string(info.param.name); });

// DeepSpeed's keys of XTC, in its example of BERT; the numbers of layers begin with 0.
TEST(LayerReduction, GivesTheStudentExactlyTheNamedLayers) {
  const auto run_of = [](const char* layers) {
    TinyRun run;
    const std::filesystem::path path = run.folder() / "records.jsonl";
    std::string lines;
    for (int i = 0; i < 40; ++i)
      lines += fmt::format("{{\"text\": \"abc{}\", \"label\": \"{}\"}}\n", i, i % 3);
    files::write_atomic(path, lines);
    run.set("model",
            fmt::format(R"({{"family": "bert", "num_layers": {}, "hidden_size": 16, "num_heads": 2,
                             "max_positions": 16}})",
                        layers));
    return run.set("task", R"("classify")").set("data.train", "\"" + path.string() + "\"");
  };
  const TinyRun teacher = run_of("5");
  const files::TempDir taught, saved;
  (void)teacher.train({}, 2, taught.path());
  const std::string from = "\"" + checkpoint::newest(taught.path())->string() + "\"";
  TinyRun student = run_of("3");
  student.set("compression_training", R"({"layer_reduction": {"enabled": true,
      "keep_number_layer": 3, "module_name_prefix": "bert.encoder.layer", "teacher_layer": [1, 3, 4],
      "other_module_name": ["bert.pooler", "bert.embeddings", "classifier"]}})");
  student.set("distill.teacher", from)
      .set("distill.alpha", "0")
      .set("model", "{}")
      .set("optimizer.params.lr", "0.0")
      .set("optimizer.params.weight_decay", "0.0");

  (void)student.train({.ranks = 2, .stage = 3}, 1, saved.path());

  const checkpoint::Checkpoint before(*checkpoint::newest(taught.path())),
      after(*checkpoint::newest(saved.path()));
  const std::vector<std::string> kept = {"1", "3", "4"};
  std::size_t compared = 0;
  for (const auto& tensor : after.tensors()) {
    if (tensor.name.starts_with("optimizer.")) continue;
    std::string name = tensor.name;
    const std::string layer = "layer.";
    if (const auto at = name.find(layer); at != std::string::npos) {
      const auto number = static_cast<std::size_t>(name[at + layer.size()] - '0');
      ASSERT_LT(number, kept.size()) << name;
      name.replace(at + layer.size(), 1, kept[number]);
    }
    ASSERT_TRUE(before.has(name)) << name;
    for (const auto& other : before.tensors()) {
      if (other.name != name) continue;
      EXPECT_EQ(after.values(tensor), before.values(other)) << tensor.name;
      ++compared;
    }
  }
  // Embeddings, three layers, pooler and classifier.
  EXPECT_GT(compared, 3U * 12);
}

TEST(LayerReduction, RefusesNumbersThatDoNotFit) {
  TinyRun run;
  run.set(
      "compression_training",
      R"({"layer_reduction": {"enabled": true, "keep_number_layer": 2, "teacher_layer": [0]}})");
  try {
    (void)run.plan({});
    FAIL() << "no error";
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), ::testing::HasSubstr("keep_number_layer is 2"));
  }
}

TEST_F(Distillation, RefusesWhatItCannotDo) {
  const auto refusal = [](const TinyRun& run, const Layout& layout) -> std::string {
    try {
      (void)run.plan(layout);
    } catch (const Error& error) {
      return error.what();
    }
    return "";
  };
  TinyRun run;
  run.set("distill.layers", "[0]");
  EXPECT_THAT(refusal(run, {}), ::testing::HasSubstr("without distill.teacher"));
  student_.set("distill.layers", "[1, 0]");
  EXPECT_THAT(refusal(student_, {}), ::testing::HasSubstr("ascending numbers"));
}

}  // namespace
}  // namespace tessera::test
