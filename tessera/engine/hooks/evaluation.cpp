// SPDX-License-Identifier: Apache-2.0
// Held-out loss, sample text and loss plot; ends a training without gains.
#include <cstdint>
#include <string>

#include "tessera/base/text.h"
#include "tessera/engine/class_pictures.h"
#include "tessera/engine/hooks/hooks.h"
#include "tessera/engine/metric_lines.h"
#include "tessera/engine/plots.h"
#include "tessera/report/appended_file.h"

namespace tessera::engine {

namespace {

/// Appends a line to samples.jsonl for a text that the model generated.
void keep_sample(Trainer& trainer, const std::string& text) {
  const Engine& engine = trainer.engine();
  if (!trainer.engine().world().is_leader() || trainer.run_dir().empty()) return;
  const json::Value line =
      json::Value::object({{"step", json::Value::integer(engine.step())},
                           {"prompt", json::Value::string(engine.plan().config.eval.prompt)},
                           {"text", json::Value::string(text::replace_invalid_utf8(text))}});
  trainer.try_to_write([&] {
    report::AppendedFile(trainer.run_dir() / "samples.jsonl").append(line.dump() + '\n');
  });
}

}  // namespace

void EvaluationHook::before_train(Trainer& trainer) {
  if (!trainer.engine().world().is_leader() || trainer.run_dir().empty()) return;
  trainer.try_to_write(
      [&] { drop_later_lines(trainer.run_dir() / "samples.jsonl", trainer.engine().step()); });
}

void EvaluationHook::after_train_iter(Trainer& trainer, const StepReport& report) {
  if (when_.due(report.step, report.epoch_ended)) run(trainer);
}

void EvaluationHook::after_train(Trainer& trainer) {
  // A stop must be quick: it saves a checkpoint and does not evaluate.
  if (trainer.stop_signal() == 0 && trainer.last() && evaluated_step_ != trainer.engine().step())
    run(trainer);
}

void EvaluationHook::run(Trainer& trainer) {
  Engine& engine = trainer.engine();
  evaluated_step_ = engine.step();
  trainer.test();
  engine.pause_clock();
  if (!engine.plan().config.eval.prompt.empty()) {
    const std::string sample = engine.sample();
    keep_sample(trainer, sample);
    trainer.tell_sample(sample);
    if (Console* console = trainer.console()) {
      console->line("sample:");
      for (const std::string& line : text::split(sample, '\n'))
        console->line("  | " + line);
    }
  }
  if (engine.world().is_leader() && !trainer.run_dir().empty()) {
    trainer.try_to_write([&] {
      write_plots(engine.plan(), trainer.run_dir());
      if (trainer.last_eval())
        write_class_pictures(
            trainer.run_dir(), trainer.last_eval()->predictions, engine.plan().model.objective);
    });
  }
  engine.resume_clock();
}

void PatienceHook::after_test(Trainer& trainer, const EvalReport& report) {
  Engine& engine = trainer.engine();
  const tasks::EvalOptions& options = engine.plan().config.eval;
  engine.standing().add(engine.step(), value_of(report, options.rule()), options);
  const auto reason = engine.standing().why_stop(options);
  // After the last step there is nothing left to stop.
  if (!reason || engine.step() >= engine.max_steps()) return;
  trainer.stop_early(*reason);
  if (Console* console = trainer.console()) console->line(*reason);
}

}  // namespace tessera::engine
