// SPDX-License-Identifier: Apache-2.0
#include "tessera/tasks/preference_pairs.h"

#include <algorithm>
#include <cmath>
#include <optional>
#include <span>
#include <string_view>
#include <utility>

#include <fmt/format.h>

#include "tessera/base/error.h"
#include "tessera/base/log.h"
#include "tessera/base/text.h"

namespace tessera::tasks {
namespace {

constexpr std::int64_t kNoLabel = -100;

/// The number of bytes in the common beginning of both texts: whole characters, and without a space
/// at the end, which belongs to the next word.
std::size_t common_prefix(const std::string& a, const std::string& b) {
  auto size = static_cast<std::size_t>(std::ranges::mismatch(a, b).in1 - a.begin());
  const auto inside = [](const std::string& text, std::size_t at) {
    return at < text.size() && (static_cast<unsigned char>(text[at]) & 0xC0U) == 0x80U;
  };
  while (size > 0 && (inside(a, size) || inside(b, size)))
    --size;
  if (size > 0 && a[size - 1] == ' ') --size;
  return size;
}

/// A field as a list of messages: it contains a list, or one message.
json::Value messages_in(const data::Record& record, const char* field) {
  const json::Value& value = field_of(record, field, nullptr);
  return conversation_of(record, value.is_object() ? json::Value::array({value}) : value, field);
}

json::Value joined(const json::Value& first, const json::Value& second) {
  json::Value out = first;
  for (const json::Value& item : second.items())
    out.push_back(item);
  return out;
}

std::size_t common_messages(const json::Value& a, const json::Value& b) {
  const auto equal = [](const json::Value& x, const json::Value& y) {
    return x.dump() == y.dump();
  };
  return static_cast<std::size_t>(std::ranges::mismatch(a.items(), b.items(), equal).in1 -
                                  a.items().begin());
}

TokenPair pair_of_messages(const data::Record& record, const ConversationTokenizer& tokenizer) {
  json::Value chosen = messages_in(record, "chosen"), rejected = messages_in(record, "rejected");
  std::size_t prompt = 0;
  const bool named = record.value.find("prompt") != nullptr;
  if (named || record.value.find("conversations") != nullptr) {
    json::Value before;
    if (!named) {
      before = messages_of(record, Form::ShareGpt);
    } else if (record.value.find("prompt")->is_string()) {
      before = json::Value::array({json::Value::object(
          {{"role", json::Value::string("user")},
           {"content", json::Value::string(text_of(record, "prompt", nullptr))}})});
    } else {
      before = messages_in(record, "prompt");
    }
    prompt = before.items().size();
    // Some files repeat the prompt at the beginning of both answers.
    if (common_messages(before, chosen) < prompt) chosen = joined(before, chosen);
    if (common_messages(before, rejected) < prompt) rejected = joined(before, rejected);
  } else {
    prompt = common_messages(chosen, rejected);
    if (prompt == 0) {
      record.refuse("\"chosen\" and \"rejected\" begin with different messages",
                    "let both begin with the same prompt, or give a field \"prompt\"");
    }
  }
  if (prompt >= chosen.items().size() || prompt >= rejected.items().size()) {
    record.refuse("a completion has no message of its own",
                  "let \"chosen\" and \"rejected\" end with different answers");
  }
  return {tokenizer.conversation(record, chosen, prompt, LossOn::Completion),
          tokenizer.conversation(record, rejected, prompt, LossOn::Completion)};
}

TokenPair pair_of_texts(const data::Record& record, const ConversationTokenizer& tokenizer) {
  std::string chosen = text_of(record, "chosen", nullptr),
              rejected = text_of(record, "rejected", nullptr), prompt;
  if (record.value.find("prompt") == nullptr && record.value.find("instruction") != nullptr) {
    const json::Value asked = alpaca_prompt_of(record);
    return {tokenizer.answer(record, asked, chosen, LossOn::Completion),
            tokenizer.answer(record, asked, rejected, LossOn::Completion)};
  }
  if (record.value.find("prompt") != nullptr) {
    prompt = text_of(record, "prompt", nullptr);
  } else {
    const std::size_t size = common_prefix(chosen, rejected);
    prompt = chosen.substr(0, size);
    chosen.erase(0, size);
    rejected.erase(0, size);
    if (prompt.empty()) {
      log::warn_once(
          fmt::format("{}: the record has no \"prompt\", and \"chosen\" and \"rejected\" begin "
                      "differently: their "
                      "prompt is empty; name the prompt's field in data.map",
                      record.place));
    }
  }
  return {tokenizer.completion(prompt, chosen, LossOn::Completion),
          tokenizer.completion(prompt, rejected, LossOn::Completion)};
}

/// Lets both completions begin where the earlier one does: where a text is tokenized together with
/// the end of the prompt, their first tokens differ, and what is compared must share its context.
/// Source: TRL's tokenization of prompts with completions.
void share_context(TokenPair& pair) {
  const auto begin = [](const LearnedTokens& text) {
    return std::ranges::find(text.learned, std::uint8_t{1}) - text.learned.begin();
  };
  const auto first = std::min(begin(pair.chosen), begin(pair.rejected));
  for (LearnedTokens* text : {&pair.chosen, &pair.rejected})
    std::fill(text->learned.begin() + std::min(first, std::ssize(text->learned)),
              text->learned.end(),
              std::uint8_t{1});
}

double number_of(const data::Record& record, const char* field) {
  const json::Value& value = field_of(record, field, nullptr);
  const std::optional<double> out = number_in(record, value);
  if (!out) record.refuse(fmt::format("\"{}\" is {}", field, value.dump()), "give a finite number");
  return *out;
}

bool flag_of(const data::Record& record, const char* field) {
  const json::Value& value = field_of(record, field, nullptr);
  if (value.is_bool()) return value.as_bool();
  if (value.is_number()) {
    const std::optional<std::int64_t> number = value.as_integer();
    if (number == 0 || number == 1) return number == 1;
  }
  if (value.is_string()) {
    const std::string word = text::lower(value.as_string());
    if (word == "true" || word == "1") return true;
    if (word == "false" || word == "0") return false;
  }
  record.refuse(fmt::format("\"{}\" is {}", field, value.dump()),
                "give true where the completion is wanted, else false");
}

void cut_to(LearnedTokens& text, std::int64_t length) {
  const auto size = static_cast<std::size_t>(length);
  if (text.ids.size() <= size) return;
  text.ids.resize(size);
  text.learned.resize(size);
}

/// A pair of two answers with the question and DeepSpeed-Chat's words around it.
data::Record pair_record(const data::Record& record,
                         const std::string& question,
                         std::string first,
                         std::string second,
                         bool first_is_chosen) {
  if (!first_is_chosen) std::swap(first, second);
  data::Record out = record;
  out.value =
      json::Value::object({{"prompt", json::Value::string(" Human: " + question + " Assistant:")},
                           {"chosen", json::Value::string(" " + first)},
                           {"rejected", json::Value::string(" " + second)}});
  return out;
}

/// Records of published data that compare two answers by scores or by a choice: WebGPT comparisons
/// (question.full_text, answer_0, answer_1, score_0, score_1) and Stanford Human Preferences
/// (history, human_ref_A, human_ref_B, labels: 1 for A). Nothing for other records.
std::optional<data::Record> published_pair(const data::Record& record) {
  const auto has = [&](const char* field) { return record.value.find(field) != nullptr; };
  if (has("chosen") || has("rejected")) return std::nullopt;
  if (has("answer_0") && has("answer_1")) {
    const json::Value& question = field_of(record, "question", nullptr);
    data::Record asked = record;
    if (question.is_object()) asked.value = question;
    return pair_record(record,
                       text_of(asked, question.is_object() ? "full_text" : "question", nullptr),
                       text_of(record, "answer_0", nullptr),
                       text_of(record, "answer_1", nullptr),
                       number_of(record, "score_0") >= number_of(record, "score_1"));
  }
  if (has("human_ref_A") && has("human_ref_B")) {
    return pair_record(record,
                       text_of(record, "history", nullptr),
                       text_of(record, "human_ref_A", nullptr),
                       text_of(record, "human_ref_B", nullptr),
                       flag_of(record, "labels"));
  }
  return std::nullopt;
}

/// A labelled conversation, whose last message is the completion, as prompt and completion; other
/// records as they are.
data::Record with_completion(const data::Record& record) {
  const bool turns = record.value.find("conversations") != nullptr;
  const char* const field = turns ? "conversations" : "messages";
  if (record.value.find("completion") != nullptr || record.value.find(field) == nullptr)
    return record;
  const json::Value messages = turns ? messages_of(record, Form::ShareGpt)
                                     : conversation_of(record, *record.value.find(field), field);
  const auto& all = messages.items();
  const json::Value* const role = all.size() < 2 ? nullptr : all.back().find("role");
  if (role == nullptr || !role->is_string() || role->as_string() != "assistant")
    record.refuse(fmt::format("\"{}\" does not end with an answer of the assistant", field),
                  "label conversations whose last message is the completion");
  data::Record out = record;
  json::Value prompt = json::Value::array();
  for (std::size_t i = 0; i + 1 < all.size(); ++i)
    prompt.push_back(all[i]);
  out.value["prompt"] = std::move(prompt);
  out.value["completion"] = json::Value::array({all.back()});
  return out;
}

void add_to(Fingerprint& out, const LearnedTokens& text) {
  out.add(text.ids);
  out.add(
      std::string_view(reinterpret_cast<const char*>(text.learned.data()), text.learned.size()));
}

}  // namespace

TokenPair pair_of(const data::Record& record, const ConversationTokenizer& tokenizer) {
  if (const auto published = published_pair(record)) return pair_of(*published, tokenizer);
  const json::Value& chosen = field_of(record, "chosen", nullptr);
  const json::Value& rejected = field_of(record, "rejected", nullptr);
  TokenPair out = chosen.is_string() && rejected.is_string() ? pair_of_texts(record, tokenizer)
                                                             : pair_of_messages(record, tokenizer);
  if (out.chosen.ids == out.rejected.ids) {
    record.refuse("\"chosen\" and \"rejected\" are equal",
                  "remove the record, or leave it out: data.on_bad_record \"skip\"");
  }
  share_context(out);
  return out;
}

// Both keep the same number of tokens from their beginning, unless one of them has fewer.
void PreferenceSamples::fit(Sample& sample) {
  const std::int64_t a = std::ssize(sample.first.ids), b = std::ssize(sample.second.ids),
                     room = options_.length;
  if (options_.aligned) {
    if (std::max(a, b) <= room / 2) return;
    cut_to(sample.first, room / 2);
    cut_to(sample.second, room / 2);
    ++cut_;
    return;
  }
  if (a + b <= room) return;
  const std::int64_t most = std::max(room / 2, room - std::min(a, b));
  cut_to(sample.first, most);
  cut_to(sample.second, std::min(most, room - std::ssize(sample.first.ids)));
  ++cut_;
}

void PreferenceSamples::read_files(const std::vector<std::string>& files,
                                   const data::RecordOptions& how,
                                   const ConversationTokenizer& tokenizer,
                                   const std::function<void()>& poll) {
  read_records(files, how, poll, [&](const data::Record& record) {
    Sample sample;
    if (options_.kind == PreferenceKind::Pairs) {
      TokenPair pair = pair_of(record, tokenizer);
      sample.first = std::move(pair.chosen);
      sample.second = std::move(pair.rejected);
      if (options_.margins) sample.margin = number_of(record, "margin");
      fit(sample);
      if (!sample.first.any() || !sample.second.any()) {
        ++left_out_;
        return;
      }
    } else {
      sample.wanted = flag_of(record, "label");
      sample.first = tokenizer.read(
          with_completion(record), Form::PromptCompletion, LossOn::Completion, "text");
      if (!sample.first.any()) {
        ++left_out_;
        return;
      }
    }
    stats_.tokens += std::ssize(sample.first.ids) + std::ssize(sample.second.ids);
    samples_.push_back(std::move(sample));
  });
}

std::unique_ptr<RecordDataset> PreferenceSamples::split_off(std::int64_t count) {
  auto tail = std::make_unique<PreferenceSamples>(options_);
  tail->samples_ = take_tail(samples_, count);
  return tail;
}

void PreferenceSamples::reorder(const std::vector<std::int64_t>& order) {
  samples_ = reordered(samples_, order);
}

// As TRL pairs them, so that the divergence of a group is that of its own completions.
std::size_t PreferenceSamples::partner_of(std::size_t sample) const {
  const std::size_t all = samples_.size(),
                    size = options_.group > 1 ? static_cast<std::size_t>(options_.group) : all,
                    begin = sample / size * size, end = std::min(begin + size, all);
  return (sample == begin ? end : sample) - 1;
}

void PreferenceSamples::arrange() {
  if (options_.kind == PreferenceKind::Pairs || samples_.empty()) return;
  TESSERA_REQUIRE(samples_.size() > 1,
                  Data,
                  fmt::format("{} labelled completion, and each is compared with another one's",
                              samples_.size()),
                  "give two records at least");
  std::vector<LearnedTokens> firsts;
  for (const Sample& sample : samples_)
    firsts.push_back(sample.first);
  for (std::size_t i = 0; i < samples_.size(); ++i) {
    const LearnedTokens &own = firsts[i], &other = firsts[partner_of(i)];
    LearnedTokens& out = samples_[i].second;
    for (const bool completion : {false, true}) {
      const LearnedTokens& from = completion ? other : own;
      for (std::size_t t = 0; t < from.ids.size(); ++t) {
        if ((from.learned[t] != 0) != completion) continue;
        out.ids.push_back(from.ids[t]);
        out.learned.push_back(completion ? 1 : 0);
      }
    }
    fit(samples_[i]);
  }
  std::erase_if(samples_, [&](const Sample& sample) {
    const bool drop = !sample.first.any() || !sample.second.any();
    left_out_ += drop ? 1 : 0;
    return drop;
  });
}

std::vector<data::TensorSpec> PreferenceSamples::tensors() const {
  const std::vector<std::int64_t> row = {options_.length};
  std::vector<data::TensorSpec> out = {
      {.name = "input_ids", .dtype = DType::I64, .shape = row},
      {.name = "labels", .dtype = DType::I64, .shape = row},
      {.name = "completion", .dtype = DType::I64, .shape = row},
      {.name = "document_starts", .dtype = DType::I64, .shape = row},
      {.name = "attention_mask", .dtype = DType::I64, .shape = row, .optional = true},
      {.name = "second_text", .dtype = DType::I64}};
  if (options_.margins) out.push_back({.name = "margin", .dtype = DType::F32});
  if (options_.aligned) {
    out.push_back({.name = "ends", .dtype = DType::I64, .shape = {2}});
    out.push_back({.name = "compared", .dtype = DType::I64, .shape = {2}});
  }
  if (options_.kind == PreferenceKind::Labelled)
    out.push_back({.name = "wanted", .dtype = DType::I64});
  return out;
}

std::optional<data::TensorSpec> PreferenceSamples::made_by_model() const {
  if (!options_.reference) return std::nullopt;
  return data::TensorSpec{.name = "reference", .dtype = DType::F64, .shape = {2}};
}

void PreferenceSamples::read(std::int64_t index, data::SampleWriter& out) const {
  const Sample& sample = samples_.at(static_cast<std::size_t>(index));
  const auto ids = out.tensor<std::int64_t>("input_ids"),
             labels = out.tensor<std::int64_t>("labels"),
             completion = out.tensor<std::int64_t>("completion"),
             starts = out.tensor<std::int64_t>("document_starts"),
             mask = out.tensor<std::int64_t>("attention_mask");
  std::ranges::fill(ids, options_.pad_id);
  std::ranges::fill(labels, kNoLabel);
  std::ranges::fill(completion, 0);
  std::ranges::fill(mask, 0);
  const std::size_t longest = std::max(sample.first.ids.size(), sample.second.ids.size());
  std::size_t at = 0;
  for (const LearnedTokens* text : {&sample.first, &sample.second}) {
    const std::size_t first = at;
    for (std::size_t t = 0; t < text->ids.size(); ++t, ++at) {
      ids[at] = text->ids[t];
      mask[at] = 1;
      starts[at] = static_cast<std::int64_t>(first);
      if (t == 0) continue;
      labels[at - 1] = text->ids[t];
      completion[at - 1] = text->learned[t];
    }
    for (; options_.aligned && at < first + longest; ++at) {
      starts[at] = static_cast<std::int64_t>(first);
      out.need("attention_mask");
    }
  }
  if (at < ids.size()) out.need("attention_mask");
  for (; at < starts.size(); ++at)
    starts[at] = static_cast<std::int64_t>(at);  // padding attends only to itself
  out.set("second_text",
          options_.aligned ? static_cast<std::int64_t>(longest) : std::ssize(sample.first.ids));
  if (options_.aligned) {
    const auto ends = out.tensor<std::int64_t>("ends"),
               compared = out.tensor<std::int64_t>("compared");
    ends[0] = std::ssize(sample.first.ids);
    ends[1] = std::ssize(sample.second.ids);
    const auto differs = std::ranges::mismatch(sample.first.ids, sample.second.ids).in1;
    // Sequences that were cut to the same tokens are compared at their last one.
    compared[0] = std::min(std::distance(sample.first.ids.begin(), differs),
                           static_cast<std::ptrdiff_t>(longest) - 1);
    compared[1] = static_cast<std::int64_t>(longest);
  }
  if (options_.margins) out.set("margin", static_cast<float>(sample.margin));
  if (options_.kind == PreferenceKind::Labelled)
    out.set("wanted", std::int64_t{sample.wanted ? 1 : 0});
}

std::int64_t PreferenceSamples::tokens() const {
  std::int64_t tokens = 0;
  for (const Sample& sample : samples_)
    tokens += std::ssize(sample.first.ids) + std::ssize(sample.second.ids);
  return tokens;
}

std::string PreferenceSamples::fingerprint() const {
  Fingerprint out;
  out.add(options_.length);
  out.add(static_cast<std::int64_t>(options_.kind));
  if (options_.aligned) out.add(std::string_view("aligned"));
  for (const Sample& sample : samples_) {
    add_to(out, sample.first);
    add_to(out, sample.second);
    out.add(sample.wanted ? 1 : 0);
    out.add(fmt::format("{}", sample.margin));
  }
  return out.text();
}

}  // namespace tessera::tasks
