// SPDX-License-Identifier: Apache-2.0
#include "tessera/tasks/sentences.h"

#include <algorithm>
#include <filesystem>
#include <memory>
#include <string_view>

#include <fmt/format.h>

#include "tessera/base/error.h"
#include "tessera/base/files.h"
#include "tessera/base/text.h"
#include "tessera/data/json_line.h"
#include "tessera/data/sources.h"

namespace tessera::tasks {
namespace {

std::string_view trimmed(std::string_view line) {
  constexpr std::string_view kSpace = " \t\r\n";
  const std::size_t first = line.find_first_not_of(kSpace);
  if (first == std::string_view::npos) return {};
  return line.substr(first, line.find_last_not_of(kSpace) - first + 1);
}

/// Divides files into documents and sentences.
class SentenceReader {
 public:
  SentenceReader(Sentences& sentences,
                 std::vector<SentenceRange>& documents,
                 const text::Tokenizer& tokenizer,
                 const data::TokenizeOptions& how)
      : all_(sentences), documents_(documents), tokenizer_(tokenizer), how_(how) {}

  data::TokenizeStats stats;

  void read(const data::Source& source) {
    data::refuse_range(source);
    const std::shared_ptr<const files::Mapped> file = data::map_source(source.path);
    const std::string_view text = data::without_bom(file->text());
    if (source.kind == data::Source::Kind::Text) {
      std::int64_t line = 0;
      for_each_line(text, [&](std::string_view sentence) {
        ++line;
        add_line(sentence, fmt::format("{}:{}", source.path.string(), line));
      });
      end_document();
    } else {
      read_records(text, source.path.string());
    }
    stats.bytes += std::ssize(file->text());
  }

  /// Reads a token file; its sequences are sentences.
  void read_tokens(const std::filesystem::path& path) {
    const std::shared_ptr<const data::TokenFile> file = data::TokenFile::open(path);
    TESSERA_REQUIRE(
        file->documents() > 0,
        Data,
        fmt::format("{} has tokens, and no documents or sentences", path.string()),
        "make a .bin/.idx pair with one sequence a sentence (preprocess_data.py "
        "--split-sentences), or name the text, with a sentence per line and a blank line after "
        "each document");
    file->check_ids(tokenizer_.size(), how_.poll);
    for (std::int64_t document = 0; document < file->documents(); ++document) {
      const std::int64_t end = file->document_begin(document + 1);
      for (std::int64_t sentence = file->document_begin(document); sentence < end; ++sentence)
        add_tokens(*file, sentence);
      end_document();
    }
    stats.bytes += file->tokens() * std::int64_t{sizeof(std::int32_t)};
  }

 private:
  void add_tokens(const data::TokenFile& file, std::int64_t sentence) {
    constexpr std::int64_t kPollEvery = 1024;
    if (how_.poll && ++lines_ % kPollEvery == 0) how_.poll();
    ids_.resize(static_cast<std::size_t>(file.sequence_length(sentence)));
    if (ids_.empty()) return;
    file.read(file.sequence_begin(sentence), std::ssize(ids_), ids_.data());
    for (const std::int64_t id : ids_)
      all_.tokens.push_back(static_cast<std::int32_t>(id));
    all_.begins.push_back(std::ssize(all_.tokens));
  }

  template <class Take>
  void for_each_line(std::string_view text, const Take& take) {
    for (std::size_t begin = 0; begin < text.size();) {
      const std::size_t end = std::min(text.find('\n', begin), text.size());
      take(text.substr(begin, end - begin));
      begin = end + 1;
    }
  }

  void read_records(std::string_view text, const std::string& file) {
    std::int64_t number = 0;
    for_each_line(text, [&](std::string_view line) {
      const std::string place = fmt::format("{}:{}", file, ++number);
      std::string kept;
      line = trimmed(checked(line, place, kept));
      if (line.empty()) return;
      std::string field;
      const auto problem =
          data::read_text_field(line, how_.text_field, replaces(), field, stats.replaced_utf8);
      if (problem) {
        throw Error(Error::Kind::Data,
                    fmt::format("{}: {}", place, problem->what),
                    problem->fix.empty() ? "write one JSON object a line" : problem->fix);
      }
      for_each_line(field, [&](std::string_view sentence) { add_line(sentence, place); });
      end_document();
    });
  }

  /// A sentence, or the end of a document.
  void add_line(std::string_view line, const std::string& place) {
    constexpr std::int64_t kPollEvery = 1024;
    if (how_.poll && ++lines_ % kPollEvery == 0) how_.poll();
    std::string kept;
    line = trimmed(checked(line, place, kept));
    if (line.empty()) {
      end_document();
      return;
    }
    tokenizer_.encode(line, all_.tokens, /*special=*/false);
    if (std::ssize(all_.tokens) > all_.begins.back())
      all_.begins.push_back(std::ssize(all_.tokens));
  }

  void end_document() {
    const std::int64_t sentences = std::ssize(all_.begins) - 1;
    if (sentences == first_) return;
    documents_.emplace_back(first_, sentences);
    first_ = sentences;
    ++stats.documents;
  }

  [[nodiscard]] bool replaces() const { return how_.invalid_utf8 == "replace"; }
  std::string_view checked(std::string_view line, const std::string& place, std::string& kept) {
    const auto bad = text::find_invalid_utf8(line);
    if (!bad) return line;
    TESSERA_REQUIRE(
        replaces(),
        Data,
        fmt::format("{}: byte 0x{:02X} is not valid UTF-8 (byte {} of the line)",
                    place,
                    static_cast<unsigned char>(line[*bad]),
                    *bad),
        "convert the file (iconv -f WINDOWS-1252 -t UTF-8), or set data.invalid_utf8 to "
        "\"replace\"");
    ++stats.replaced_utf8;
    kept = text::replace_invalid_utf8(line);
    return kept;
  }

  Sentences& all_;
  std::vector<SentenceRange>& documents_;
  const text::Tokenizer& tokenizer_;
  const data::TokenizeOptions& how_;
  std::int64_t first_ = 0, lines_ = 0;
  std::vector<std::int64_t> ids_;  // of a sentence
};

}  // namespace

data::TokenizeStats read_sentences(const std::vector<std::string>& names,
                                   const text::Tokenizer& tokenizer,
                                   const data::TokenizeOptions& how,
                                   Sentences& sentences,
                                   std::vector<SentenceRange>& documents) {
  SentenceReader reader(sentences, documents, tokenizer, how);
  // Neighbouring texts are expanded together.
  std::vector<std::filesystem::path> texts;
  const auto read_texts = [&] {
    if (texts.empty()) return;
    for (const data::Source& source : data::expand_sources(texts))
      reader.read(source);
    texts.clear();
  };
  for (const std::string& name : names) {
    if (!data::names_token_file(name)) {
      texts.emplace_back(name);
      continue;
    }
    read_texts();
    reader.read_tokens(name);
  }
  read_texts();
  reader.stats.tokens = std::ssize(sentences.tokens);
  return reader.stats;
}

std::vector<std::string> sentence_files(const std::vector<std::string>& names) {
  std::vector<std::string> out;
  for (const std::string& name : names) {
    if (data::names_token_file(name)) {
      out.push_back(name);
      continue;
    }
    for (const data::Source& source : data::expand_sources({name})) {
      data::refuse_range(source);
      out.push_back(source.path.string());
    }
  }
  return out;
}

}  // namespace tessera::tasks
