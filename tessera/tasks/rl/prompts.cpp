// SPDX-License-Identifier: Apache-2.0
#include "tessera/tasks/rl/prompts.h"

#include <algorithm>
#include <span>
#include <utility>

#include <fmt/format.h>

#include "tessera/base/error.h"

namespace tessera::tasks {
namespace {

constexpr std::int64_t kUnlabelled = -100;

json::Value messages_to_answer(const data::Record& record, const char* field) {
  json::Value messages = conversation_of(record, field_of(record, field, nullptr), field);
  if (messages.items().empty())
    record.refuse(fmt::format("\"{}\" has no message", field), "give one of the user's");
  const json::Value* const role = messages.items().back().find("role");
  if (role != nullptr && role->is_string() && role->as_string() == "assistant") {
    record.refuse(fmt::format("\"{}\" ends with an answer, which the policy is to give", field),
                  "let it end with a message of the user's; the answer may be a field of its own");
  }
  return messages;
}

}  // namespace

Prompt prompt_of(const data::Record& record,
                 const ConversationTokenizer& conversations,
                 const text::Tokenizer& tokenizer) {
  Prompt out;
  const json::Value* const prompt = record.value.find("prompt");
  const bool messages = record.value.find("messages") != nullptr && prompt == nullptr;
  if (messages || (prompt != nullptr && prompt->is_array())) {
    out.text = conversations.render(record,
                                    messages_to_answer(record, messages ? "messages" : "prompt"),
                                    /*add_generation_prompt=*/true);
    tokenizer.encode(out.text, out.ids);
  } else {
    out.text = text_of(record, "prompt", nullptr);
    out.ids = tokenizer.encode_prompt(out.text);
  }
  if (out.ids.empty()) record.refuse("the prompt has no token", "give a text");
  out.record = record.value;
  out.place = record.place;
  return out;
}

void Prompts::read_files(const std::vector<std::string>& files,
                         const data::RecordOptions& how,
                         const ConversationTokenizer& conversations,
                         const text::Tokenizer& tokenizer,
                         const std::function<void()>& poll) {
  read_records(files, how, poll, [&](const data::Record& record) {
    Prompt prompt = prompt_of(record, conversations, tokenizer);
    if (std::ssize(prompt.ids) > options_.longest) {
      ++left_out_;
      return;
    }
    prompts_.push_back(std::move(prompt));
  });
}

void Prompts::add_texts(data::OpenedDataset texts) {
  texts_ = std::move(texts.dataset);
  texts_fingerprint_ = texts.fingerprint;
}

void Prompts::add_pairs(const std::string& name, std::unique_ptr<const PreferenceSamples> pairs) {
  pairs_[name] = std::move(pairs);
}

const PreferenceSamples* Prompts::pairs(const std::string& name) const {
  const auto found = pairs_.find(name);
  return found == pairs_.end() ? nullptr : found->second.get();
}

std::unique_ptr<RecordDataset> Prompts::split_off(std::int64_t count) {
  auto tail = std::make_unique<Prompts>(options_);
  // `count` is a number of samples, of which each prompt has several.
  tail->prompts_ = take_tail(prompts_, std::min(this->count(), count / options_.uses));
  return tail;
}

std::vector<data::TensorSpec> Prompts::tensors() const {
  const auto tokens = [&](const char* name, DType dtype) {
    return data::TensorSpec{.name = name, .dtype = dtype, .shape = {options_.length}};
  };
  std::vector<data::TensorSpec> out = {tokens("input_ids", DType::I64),
                                       tokens("labels", DType::I64),
                                       tokens("advantages", DType::F64),
                                       tokens("old", DType::F64)};
  if (options_.reference) out.push_back(tokens("reference", DType::F64));
  return out;
}

void Prompts::read(std::int64_t index, data::SampleWriter& out) const {
  const std::vector<std::int32_t>& ids = prompt(index / options_.uses).ids;
  const std::span<std::int64_t> row = out.tensor<std::int64_t>("input_ids");
  std::ranges::fill(std::ranges::copy(ids, row.begin()).out, row.end(), options_.pad_id);
  std::ranges::fill(out.tensor<std::int64_t>("labels"), kUnlabelled);
  for (const char* name : {"advantages", "old"})
    std::ranges::fill(out.tensor<double>(name), 0.0);
  if (options_.reference) std::ranges::fill(out.tensor<double>("reference"), 0.0);
}

std::int64_t Prompts::tokens() const {
  std::int64_t out = 0;
  for (const Prompt& prompt : prompts_)
    out += std::ssize(prompt.ids);
  return out;
}

std::string Prompts::fingerprint() const {
  Fingerprint out;
  out.add(options_.length);
  out.add(options_.longest);
  for (const Prompt& prompt : prompts_) {
    out.add(prompt.ids);
    out.add(prompt.record.dump());
  }
  if (texts_ != nullptr) out.add(texts_fingerprint_);
  return out.text();
}

}  // namespace tessera::tasks
