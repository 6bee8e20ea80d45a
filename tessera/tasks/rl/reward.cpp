// SPDX-License-Identifier: Apache-2.0
#include "tessera/tasks/rl/reward.h"

#include <algorithm>
#include <utility>

#include <fmt/format.h>

#include "tessera/base/error.h"
#include "tessera/base/inputs.h"
#include "tessera/base/text.h"
#include "tessera/tasks/rl/reward_http.h"

namespace tessera::tasks {

void CommandRewardOptions::describe(config::Fields& fields) {
  fields.field("command",
               command,
               {.text = "The program and its words. It reads a line {\"id\", \"prompt\", "
                        "\"completion\", \"ended\", \"record\"} for each completion and answers "
                        "{\"id\", \"reward\"}.",
                .required = true});
  fields.field(
      "timeout",
      timeout,
      {.text = "The longest wait for an answer.", .unit = "seconds", .min = 0, .above_min = true});
  fields.field(
      "restarts",
      restarts,
      {.text = "How often a program that ends or does not answer is started again.", .min = 0});
}

void HttpRewardOptions::describe(config::Fields& fields) {
  fields.field("url",
               url,
               {.text = "Endpoint of chat completions, such as "
                        "http://127.0.0.1:8000/v1/chat/completions; https is possible. It gets "
                        "prompts and completions.",
                .required = true});
  fields.field("model", model, {.text = "Name of the model in the request."});
  fields.field("system", system, {.text = "The system message.", .default_text = "none"});
  fields.field("question",
               question,
               {.text = "The user's message. {prompt}, {completion} and fields of the record in "
                        "braces are replaced. The first number of the answer is the reward."});
  fields.field("max_tokens", max_tokens, {.text = "The largest length of an answer.", .min = 1});
  fields.field(
      "timeout",
      timeout,
      {.text = "The longest wait for an answer.", .unit = "seconds", .min = 0, .above_min = true});
  fields.field(
      "retries",
      retries,
      {.text = "How often a question is asked again that fails or gets no answer.", .min = 0});
  fields.field(
      "at_once", at_once, {.text = "Questions under way at a time.", .min = 1, .max = 256});
  fields.field("token_variable",
               token_variable,
               {.text = "Environment variable with a token, which is sent as \"Authorization: "
                        "Bearer\".",
                .default_text = "no token is sent"});
  fields.field("ca_file",
               ca_file,
               {.text = "PEM file with the certificate authorities of an https endpoint.",
                .default_text = "those of the system"});
}

void ModelRewardOptions::describe(config::Fields& fields) {
  fields.field(
      "from",
      from,
      {.text = "Run of the task reward, checkpoint or folder of a sequence classifier with "
               "one label.",
       .required = true});
  fields.field("pairs",
               pairs,
               {.text = "Files of held-out pairs, {\"prompt\", \"chosen\", \"rejected\"}, on which "
                        "the model is tested before the training.",
                .default_text = "none: it is not tested"});
}

Registry<RuleRewardFactory>& rule_rewards() {
  static Registry<RuleRewardFactory> registry("type of reward");
  return registry;
}

namespace {

constexpr const char* kCommand = "command";
constexpr const char* kHttp = "http";
constexpr const char* kModel = "model";

std::vector<std::string> types_of_rewards() {
  std::vector<std::string> out = rule_rewards().names();
  out.insert(out.end(), {kCommand, kHttp, kModel});
  std::ranges::sort(out);
  return out;
}

/// Removes a string from an object and returns it.
std::optional<std::string> take_text(json::Value& from,
                                     const char* key,
                                     config::Problems& problems) {
  json::Value* const found = from.find(key);
  if (found == nullptr) return std::nullopt;
  const json::Value value = std::move(*found);
  std::erase_if(from.members(), [&](const auto& member) { return member.first == key; });
  if (value.is_string()) return value.as_string();
  problems.add(value.place,
               key,
               fmt::format("expected a string, found {}", value.type_name()),
               "write it between quotes");
  return std::nullopt;
}

RlReward read_reward(json::Value item, config::Problems& problems) {
  RlReward out;
  config::Origins origins;
  const json::Place place = item.place;
  const std::optional<std::string> type = take_text(item, "type", problems);
  const std::vector<std::string> known = types_of_rewards();
  if (!type || std::ranges::find(known, *type) == known.end()) {
    problems.add(place,
                 "type",
                 type ? fmt::format("unknown type of reward \"{}\"", *type) : "type is missing",
                 text::suggestion(type.value_or(""), known));
    return out;
  }
  out.name = take_text(item, "name", problems).value_or(*type);
  if (const json::Value* const weight = item.find("weight"); weight != nullptr) {
    if (weight->is_number()) {
      out.weight = weight->as_double();
    } else {
      problems.add(weight->place, "weight", "the weight is not a number", "write 1.0, say");
    }
    std::erase_if(item.members(), [](const auto& member) { return member.first == "weight"; });
  }
  if (*type == kCommand) {
    config::read(item, out.command.emplace(), problems, origins);
    note_program("reward program", out.command->command);
    if (out.command->command.empty())
      problems.add(place, "command", "the command is empty", "name a program and its words");
  } else if (*type == kHttp) {
    config::read(item, out.http.emplace(), problems, origins);
    const std::string problem = out.http->url.empty() ? "" : url_problem(out.http->url);
    if (!problem.empty()) {
      problems.add(place,
                   "url",
                   fmt::format("the reward's url {} cannot be asked: {}", out.http->url, problem),
                   "write http://127.0.0.1:8000/v1/chat/completions, say");
    }
  } else if (*type == kModel) {
    config::read(item, out.model.emplace(), problems, origins);
  } else {
    out.rule = rule_rewards().get(*type)(item, problems, origins);
  }
  return out;
}

}  // namespace

std::vector<RlReward> read_rewards(const json::Value& list, config::Problems& problems) {
  std::vector<RlReward> out;
  const std::vector<json::Value> items = list.is_object()  ? std::vector<json::Value>{list}
                                         : list.is_array() ? list.items()
                                                           : std::vector<json::Value>();
  if (items.empty()) {
    problems.add(
        list.place,
        "rewards",
        "there is no reward",
        "write [{\"type\": \"exact_match\"}], say; types: " + text::join(types_of_rewards(), ", "));
  }
  for (std::size_t i = 0; i < items.size(); ++i) {
    config::Problems own;
    if (items[i].is_object()) {
      out.push_back(read_reward(items[i], own));
    } else {
      own.add(items[i].place, "", "a reward is an object", "write {\"type\": \"exact_match\"}");
    }
    problems.adopt(own, fmt::format("rewards[{}]", i));
  }
  for (std::size_t i = 0; i < out.size(); ++i) {
    const bool twice = std::any_of(
        out.begin(), out.begin() + static_cast<std::ptrdiff_t>(i), [&](const RlReward& other) {
          return other.name == out[i].name;
        });
    if (twice && !out[i].name.empty()) {
      problems.add(list.place,
                   "rewards",
                   fmt::format("two rewards have the name {}", out[i].name),
                   "give one of them another \"name\"");
    }
  }
  return out;
}

std::string field_text(const Answer& answer, const std::string& field) {
  const json::Value* const value = answer.record.find(field);
  TESSERA_REQUIRE(
      value != nullptr && (value->is_string() || value->is_number()),
      Data,
      fmt::format("{}: the record has no text or number \"{}\", which a reward compares "
                  "completions with",
                  answer.place,
                  field),
      "name the field in the reward's option \"field\"");
  return value->is_string() ? value->as_string() : value->dump();
}

}  // namespace tessera::tasks
