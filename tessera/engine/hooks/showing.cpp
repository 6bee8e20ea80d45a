// SPDX-License-Identifier: Apache-2.0
// Shows what a training has reached: a sample text and the plots.
#include <exception>
#include <string>

#include "tessera/base/error.h"
#include "tessera/base/text.h"
#include "tessera/engine/class_pictures.h"
#include "tessera/engine/hooks/hooks.h"
#include "tessera/engine/metric_lines.h"
#include "tessera/engine/plots.h"
#include "tessera/models/family.h"
#include "tessera/planner/plan.h"
#include "tessera/planner/values.h"
#include "tessera/report/appended_file.h"
#include "tessera/tasks/eval_options.h"

namespace tessera::engine {
namespace {

/// Appends a line to samples.jsonl for a text that the model generated.
void keep_sample(Trainer& trainer, const std::string& text) {
  const Engine& engine = trainer.engine();
  if (!trainer.engine().world().is_leader() || trainer.run_dir().empty()) return;
  const json::Value line = json::Value::object(
      {{"step", json::Value::integer(engine.step())},
       {"prompt", json::Value::string(planner::eval_options_of(engine.plan()).prompt)},
       {"text", json::Value::string(text::replace_invalid_utf8(text))}});
  trainer.try_to_write([&] {
    report::AppendedFile(trainer.run_dir() / "samples.jsonl").append(line.dump() + '\n');
  });
}

/// Writes the plots. Whatever fails in drawing is a file that was not written.
void draw(Trainer& trainer) {
  if (!trainer.engine().world().is_leader() || trainer.run_dir().empty()) return;
  const planner::Plan& plan = trainer.engine().plan();
  trainer.try_to_write([&] {
    try {
      write_plots(plan, trainer.run_dir());
      if (trainer.last_eval())
        write_class_pictures(
            trainer.run_dir(), trainer.last_eval()->predictions, planner::model_of(plan).objective);
    } catch (const std::exception& failure) {
      throw Error(Error::Kind::Io,
                  "the plots of the run were not written: " + std::string(failure.what()));
    }
  });
}

}  // namespace

void ShowHook::before_train(Trainer& trainer) {
  if (!trainer.engine().world().is_leader() || trainer.run_dir().empty()) return;
  trainer.try_to_write(
      [&] { drop_later_lines(trainer.run_dir() / "samples.jsonl", trainer.engine().step()); });
}

void ShowHook::after_test(Trainer& /*trainer*/, const EvalReport& /*report*/) {
  evaluated_ = true;
}

void ShowHook::after_train_iter(Trainer& trainer, const StepReport& report) {
  // The last checkpoint may be written in after_train().
  const bool last = trainer.stopping() || report.step >= trainer.engine().max_steps();
  if (evaluated_ && !last) show(trainer);
}

void ShowHook::after_train(Trainer& trainer) {
  if (evaluated_) {
    show(trainer);
  } else if (!shown_ && trainer.last()) {
    draw(trainer);
  }
}

void ShowHook::show(Trainer& trainer) {
  Engine& engine = trainer.engine();
  evaluated_ = false;
  shown_ = true;
  engine.pause_clock();
  if (!planner::eval_options_of(engine.plan()).prompt.empty()) {
    const std::string sample = engine.sample();
    keep_sample(trainer, sample);
    trainer.tell_sample(sample);
    if (Console* console = trainer.console()) {
      console->line("sample:");
      for (const std::string& line : text::split(sample, '\n'))
        console->line("  | " + line);
    }
  }
  draw(trainer);
  engine.resume_clock();
}

}  // namespace tessera::engine
