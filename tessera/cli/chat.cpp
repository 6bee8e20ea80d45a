// SPDX-License-Identifier: Apache-2.0
// tessera chat: a conversation with a trained model.
#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <ctime>
#include <filesystem>
#include <mutex>
#include <optional>
#include <stop_token>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "tessera/base/bounded_file.h"
#include "tessera/base/error.h"
#include "tessera/base/text.h"
#include "tessera/cli/arguments.h"
#include "tessera/cli/checkpoint_path.h"
#include "tessera/cli/command.h"
#include "tessera/cli/generation_flags.h"
#include "tessera/cli/line_reader.h"
#include "tessera/cli/model_task.h"
#include "tessera/cli/ranks.h"
#include "tessera/cli/terminal.h"
#include "tessera/comm/world.h"
#include "tessera/config/json.h"
#include "tessera/engine/generation_config.h"
#include "tessera/engine/open_model.h"
#include "tessera/engine/shared_values.h"
#include "tessera/tasks/answer_ends.h"
#include "tessera/tasks/conversation.h"
#include "tessera/text/chat/chat_template.h"

namespace tessera::cli {
namespace {

using text::chat::ChatTemplate;

struct ChatFlags {
  std::string path, system, chat_template, date, messages, weights = "fp32";
  GenerationFlags how;
  RankFlags ranks;
  bool last = false;  ///< of a run, the newest checkpoint
  Common common;
};

bool parse(ChatFlags& words, const std::vector<std::string>& line) {
  Arguments arguments("chat",
                      "Holds a conversation with the model's chat template. /reset starts a new "
                      "one, /quit ends the program.",
                      {"tessera chat ./my-model",
                       "tessera chat ./my-model --system \"Be brief.\" --temperature 0.7",
                       "echo \"Hello\" | tessera chat ./my-model --temperature 0",
                       "tessera chat runs/my --template chatml.jinja",
                       "tessera chat ./my-model --messages turns.json   one answer",
                       "tessera chat ./my-model --tensor 2   each layer on two ranks"});
  arguments.positional(
      "MODEL", &words.path, "Run, checkpoint or Hugging Face folder", /*required=*/false);
  arguments.option("--path", &words.path, "DeepSpeed-Chat's word for MODEL");
  arguments.option("--system", &words.system, "System prompt [none]");
  arguments.option("--template",
                   &words.chat_template,
                   "File with a chat template in Jinja [the model folder's template]");
  arguments.option("--date", &words.date, "Current date for the chat template, YYYY-MM-DD [today]");
  arguments.option(
      "--messages",
      &words.messages,
      "File with a conversation, a JSON list of {\"role\", \"content\"}; prints the answer to it");
  words.how.declare(arguments);
  arguments.option("--weights",
                   &words.weights,
                   "fp32, bf16 (with bf16 activations), or int8 with one scale per row [fp32]");
  words.ranks.declare(arguments);
  add_last(arguments, &words.last);
  arguments.common(words.common);
  return arguments.parse(line);
}

ChatTemplate template_of(const ChatFlags& words, const engine::OpenModel& model) {
  if (!words.chat_template.empty()) {
    return std::move(*tasks::open_chat_template(
        words.chat_template, engine::folders_of(model), *model.tokenizer));
  }
  auto found = engine::chat_template_of(model);
  TESSERA_REQUIRE(found,
                  Config,
                  words.path + " has no chat template",
                  "give one with --template FILE, or use `tessera generate`");
  return std::move(*found);
}

std::optional<std::time_t> date_of(const std::string& text) {
  if (text.empty()) return std::nullopt;
  std::tm day{};
  const char* const end = strptime(text.c_str(), "%Y-%m-%d", &day);
  TESSERA_REQUIRE(end != nullptr && *end == '\0',
                  Config,
                  "--date " + text + " is not a date",
                  "write it as 2024-07-26");
  day.tm_hour = 12;  // noon, so that no time zone changes the date
  day.tm_isdst = -1;
  return std::mktime(&day);
}

json::Value message(const char* role, const std::string& content) {
  json::Value out = json::Value::object();
  out["role"] = json::Value::string(role);
  out["content"] = json::Value::string(content);
  return out;
}

json::Value beginning(const ChatFlags& words) {
  json::Value messages = json::Value::array({});
  if (!words.system.empty()) messages.push_back(message("system", words.system));
  return messages;
}

/// Gives every rank the lines that the leader reads.
class SharedLines {
 public:
  SharedLines(comm::World& world, std::string prompt) : world_(world), lines_(std::move(prompt)) {}

  /// Returns the next line and the time at which it was read.
  struct Line {
    std::string text;
    std::time_t time = 0;
  };
  /// Returns nothing at the end of the input. Collective.
  [[nodiscard]] std::optional<Line> next() {
    std::optional<std::string> line;
    if (world_.is_leader()) line = read();
    constexpr std::size_t kEnd = 0, kSize = 1, kTime = 2;
    std::vector<double> facts(3);
    if (line) {
      facts[kSize] = static_cast<double>(line->size());
      facts[kTime] = static_cast<double>(std::time(nullptr));
    } else if (world_.is_leader()) {
      facts[kEnd] = 1;
    }
    engine::share_with_all(world_, facts, "the size of a line");
    if (facts[kEnd] != 0) return std::nullopt;
    std::vector<double> bytes(static_cast<std::size_t>(facts[kSize]));
    if (line) std::ranges::copy(*line, bytes.begin());
    engine::share_with_all(world_, bytes, "a line");
    Line out{.time = static_cast<std::time_t>(facts[kTime])};
    for (const double byte : bytes)
      out.text += static_cast<char>(byte);
    return out;
  }

 private:
  /// Reads a line; another thread signals to the ranks that wait that this one lives.
  [[nodiscard]] std::optional<std::string> read() {
    if (world_.size() == 1) return lines_.next();
    std::mutex mutex;
    std::condition_variable_any wake;
    const std::jthread alive([&](const std::stop_token& stop) {
      std::unique_lock lock(mutex);
      while (!stop.stop_requested()) {
        world_.show_life();
        (void)wake.wait_for(lock, stop, std::chrono::seconds(1), [] { return false; });
      }
    });
    return lines_.next();
  }

  comm::World& world_;
  LineReader lines_;
};

/// The conversation of a file. Throws Error{Data} for what is not a list of messages.
json::Value messages_in(const std::string& path) {
  json::Value out = json::parse_strict(files::read_within(path), path);
  const bool list =
      out.is_array() && !out.items().empty() &&
      std::ranges::all_of(out.items(), [](const json::Value& one) {
        return one.is_object() && one.find("role") != nullptr && one.find("content") != nullptr;
      });
  TESSERA_REQUIRE(list,
                  Data,
                  path + " is not a list of messages",
                  R"(write [{"role": "user", "content": "..."}])");
  return out;
}

/// Answers one line; if the template fails, reports it and keeps the conversation unchanged. One
/// rank prints.
void answer(engine::Generator& generator,
            const ChatTemplate& chat,
            const engine::GenerateOptions& options,
            const text::chat::RenderOptions& rendering,
            json::Value& messages,
            const std::string& line,
            bool is_leader) {
  Terminal terminal;
  messages.push_back(message("user", line));
  std::string prompt;
  try {
    prompt = chat.render(messages, rendering).text;
  } catch (const Error& error) {
    messages.items().pop_back();
    if (is_leader) print_error(error.text());
    return;
  }
  const engine::Generated made = generator.run(prompt, options, [&](std::string_view piece) {
    if (is_leader) terminal.stream(piece);
  });
  if (is_leader) terminal.stream("\n");
  messages.push_back(message("assistant", text::replace_invalid_utf8(made.text)));
}

void converse(engine::OpenModel& model,
              const ChatFlags& words,
              const ChatTemplate& chat,
              bool is_leader) {
  engine::GenerateOptions options =
      words.how.options(*model.tokenizer, engine::generation_config_of(model));
  const tasks::AnswerEnds ends = tasks::answer_ends(*model.tokenizer, &chat);
  options.stop_ids.insert(options.stop_ids.end(), ends.ids.begin(), ends.ids.end());
  options.stop_strings.insert(options.stop_strings.end(), ends.texts.begin(), ends.texts.end());
  text::chat::RenderOptions rendering;
  rendering.add_generation_prompt = true;
  engine::Generator generator(*model.executor, *model.tokenizer, model.shape);
  json::Value messages = beginning(words);
  if (!words.messages.empty()) {
    const json::Value given = messages_in(words.messages);
    for (const json::Value& one : given.items())
      messages.push_back(one);
    rendering.now = date_of(words.date);
    Terminal terminal;
    (void)generator.run(
        chat.render(messages, rendering).text, options, [&](std::string_view piece) {
          if (is_leader) terminal.stream(piece);
        });
    if (is_leader) terminal.stream("\n");
    return;
  }
  SharedLines lines(*model.world, words.common.quiet ? "" : "> ");
  while (const std::optional<SharedLines::Line> typed = lines.next()) {
    const std::string& line = typed->text;
    rendering.now = date_of(words.date).value_or(typed->time);
    const std::string_view word = text::trim(line);
    if (word.empty()) continue;
    if (word == "/quit") break;
    if (word == "/reset") {
      messages = beginning(words);
      continue;
    }
    if (text::find_invalid_utf8(line)) {
      if (is_leader) print_error("a line that is not valid UTF-8");
      continue;
    }
    answer(generator, chat, options, rendering, messages, line, is_leader);
    ++options.seed;
  }
}

int chat(const std::vector<std::string>& line) {
  ChatFlags words;
  if (!parse(words, line)) return kExitOk;
  words.how.check();
  (void)date_of(words.date);
  if (!words.messages.empty())
    (void)messages_in(words.messages);  // refused before the model is read
  TESSERA_REQUIRE(
      !words.path.empty(), Config, "tessera chat: the model is missing", "tessera chat MODEL");
  auto found = engine::find_model(model_at(words.path, words.last, words.common));
  require_generation(found->shape.objective, words.path);
  const ChatTemplate conversation = template_of(words, *found);
  return with_model(std::move(found),
                    words.ranks,
                    engine::read_as_from_name(words.weights),
                    [&](engine::OpenModel& model, bool is_leader) {
                      converse(model, words, conversation, is_leader);
                    });
}

TESSERA_COMMAND("chat", "hold a conversation with a trained model", chat);

}  // namespace
}  // namespace tessera::cli
