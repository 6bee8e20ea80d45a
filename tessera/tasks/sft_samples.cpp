// SPDX-License-Identifier: Apache-2.0
#include "tessera/tasks/sft_samples.h"

#include <algorithm>
#include <span>
#include <string_view>
#include <utility>

#include "tessera/base/error.h"

namespace tessera::tasks {
namespace {

constexpr std::int64_t kIgnored = -100;

template <class T>
void keep(std::vector<T>& items, std::size_t count, Truncation truncation) {
  if (truncation == Truncation::KeepEnd)
    items.erase(items.begin(), items.end() - static_cast<std::ptrdiff_t>(count));
  items.resize(count);
}

}  // namespace

void SftSamples::add(LearnedTokens text) {
  TESSERA_ASSERT(text.ids.size() == text.learned.size() && !samples_);
  const auto length = static_cast<std::size_t>(options_.length);
  const bool split =
      options_.packing == Packing::BestFitSplit || options_.packing == Packing::Wrapped;
  if (text.ids.size() > length && !split) {
    keep(text.ids, length, options_.truncation);
    keep(text.learned, length, options_.truncation);
    ++cut_;
  }
  if (options_.drop_unlearned && !text.any()) {
    ++unlearned_;
    return;
  }
  stats_.tokens += std::ssize(text.ids);
  texts_.push_back(std::move(text));
}

void SftSamples::read_files(const std::vector<std::string>& files,
                            const data::RecordOptions& how,
                            const ConversationTokenizer& tokenizer,
                            const std::function<void()>& poll) {
  read_records(files, how, poll, [&](const data::Record& record) {
    const Form form = options_.form ? *options_.form : form_of(record, options_.text_field);
    add(tokenizer.read(options_.drop_system ? without_system(record, form) : record,
                       form,
                       options_.loss_on,
                       options_.text_field));
  });
}

std::unique_ptr<RecordDataset> SftSamples::split_off(std::int64_t count) {
  TESSERA_ASSERT(!samples_);
  auto tail = std::make_unique<SftSamples>(options_);
  tail->texts_ = take_tail(texts_, count);
  return tail;
}

void SftSamples::reorder(const std::vector<std::int64_t>& order) {
  texts_ = reordered(texts_, order);
}

void SftSamples::arrange() {
  std::vector<std::int64_t> lengths;
  for (const LearnedTokens& text : texts_)
    lengths.push_back(std::ssize(text.ids));
  samples_ = pack(lengths, options_.length, options_.packing);
}

std::int64_t SftSamples::size() const {
  return samples_ ? std::ssize(*samples_) : std::ssize(texts_);
}

bool SftSamples::documents_apart() const {
  return options_.packing != Packing::None && options_.packing != Packing::Wrapped;
}

std::vector<data::TensorSpec> SftSamples::tensors() const {
  std::vector<data::TensorSpec> out = {
      {.name = "input_ids", .dtype = DType::I64, .shape = {options_.length}},
      {.name = "labels", .dtype = DType::I64, .shape = {options_.length}},
      {.name = "attention_mask",
       .dtype = DType::I64,
       .shape = {options_.length},
       .optional = true}};
  if (documents_apart()) {
    out.push_back({.name = "document_starts", .dtype = DType::I64, .shape = {options_.length}});
  }
  return out;
}

void SftSamples::read(std::int64_t index, data::SampleWriter& out) const {
  TESSERA_ASSERT(samples_.has_value());
  const std::span<std::int64_t> ids = out.tensor<std::int64_t>("input_ids"),
                                labels = out.tensor<std::int64_t>("labels"),
                                mask = out.tensor<std::int64_t>("attention_mask");
  std::ranges::fill(ids, options_.pad_id);
  std::ranges::fill(labels, kIgnored);
  std::ranges::fill(mask, 0);
  std::span<std::int64_t> starts;
  if (documents_apart()) starts = out.tensor<std::int64_t>("document_starts");
  std::size_t at = 0;
  for (const Piece& piece : samples_->at(static_cast<std::size_t>(index))) {
    const LearnedTokens& text = texts_[static_cast<std::size_t>(piece.text)];
    const std::size_t first = at;
    for (auto t = static_cast<std::size_t>(piece.begin); t < static_cast<std::size_t>(piece.end);
         ++t, ++at) {
      ids[at] = text.ids[t];
      mask[at] = 1;
      const bool follows = !documents_apart() ? at > 0 : at > first;
      if (follows && text.learned[t] != 0) labels[at - 1] = text.ids[t];
      if (!starts.empty()) starts[at] = static_cast<std::int64_t>(first);
    }
  }
  for (std::size_t t = at; t < starts.size(); ++t)
    starts[t] = static_cast<std::int64_t>(t);  // padding attends only to itself
  if (at < ids.size()) out.need("attention_mask");
}

std::int64_t SftSamples::tokens() const {
  std::int64_t tokens = 0;
  for (const LearnedTokens& text : texts_)
    tokens += std::ssize(text.ids);
  return tokens;
}

std::string SftSamples::fingerprint() const {
  Fingerprint out;
  out.add(options_.length);
  out.add(static_cast<std::int64_t>(options_.packing));
  for (const LearnedTokens& text : texts_) {
    out.add(text.ids);
    out.add(
        std::string_view(reinterpret_cast<const char*>(text.learned.data()), text.learned.size()));
  }
  return out.text();
}

}  // namespace tessera::tasks
