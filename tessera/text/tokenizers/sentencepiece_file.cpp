// SPDX-License-Identifier: Apache-2.0
#include "tessera/text/tokenizers/sentencepiece_file.h"

#include <array>
#include <cmath>
#include <cstring>
#include <optional>
#include <unordered_set>

#include <fmt/format.h>

#include "tessera/base/budget.h"
#include "tessera/base/protobuf.h"
#include "tessera/text/tokenizers/characters.h"
#include "tessera/text/tokenizers/models.h"
#include "tessera/text/tokenizers/part_reader.h"

namespace tessera::text::tokenizers {
namespace {

void refuse_model(const std::string& where) {
  refuse_part(where, "is not a model of sentencepiece");
}

WireReader model_fields(std::string_view message, const std::string& where) {
  return {message, where, refuse_model};
}

SentencePieceModel::Piece read_piece(std::string_view message, const std::string& where) {
  SentencePieceModel::Piece out;
  WireReader reader = model_fields(message, where);
  while (const auto field = reader.next()) {
    if (field->number == 1 && field->has_bytes) out.text = std::string(field->bytes);
    if (field->number == 2) {
      const auto bits = static_cast<std::uint32_t>(field->value);
      std::memcpy(&out.score, &bits, sizeof bits);
    }
    if (field->number == 3) {
      if (field->value < 1 || field->value > 6)
        refuse_part(where, fmt::format("has a piece of the unknown type {}", field->value));
      out.type = static_cast<SentencePieceModel::Type>(field->value);
    }
  }
  if (out.text.empty()) refuse_part(where, "has an empty piece");
  if (out.text.size() > budget::kTokenBytes)
    refuse_part(where, fmt::format("has a piece of {} bytes", out.text.size()));
  if (!is_valid_utf8(out.text)) refuse_part(where, "has a piece that is not UTF-8");
  if (!std::isfinite(out.score))
    refuse_part(where, fmt::format("gives \"{}\" a score that is not finite", out.text));
  return out;
}

void read_trainer(std::string_view message, const std::string& where, SentencePieceModel& out) {
  WireReader reader = model_fields(message, where);
  while (const auto field = reader.next()) {
    switch (field->number) {
      case 3:
        if (field->value == 3 || field->value == 4)
          unsupported_part(
              where,
              fmt::format("is a {} model of sentencepiece", field->value == 3 ? "word" : "char"));
        if (field->value != 1 && field->value != 2)
          refuse_part(where, fmt::format("is a model of the unknown type {}", field->value));
        out.algorithm = static_cast<SentencePieceModel::Algorithm>(field->value);
        break;
      case 24:
        out.space_behind = field->value != 0;
        break;
      case 35:
        out.byte_fallback = field->value != 0;
        break;
      case 44:
        out.unknown_surface = std::string(field->bytes);
        break;
      default:
        break;
    }
  }
}

void read_normalization(std::string_view message,
                        const std::string& where,
                        SentencePieceModel& out) {
  WireReader reader = model_fields(message, where);
  while (const auto field = reader.next()) {
    switch (field->number) {
      case 2:
        out.charsmap = std::string(field->bytes);
        break;
      case 3:
        out.add_dummy_prefix = field->value != 0;
        break;
      case 4:
        out.remove_extra_spaces = field->value != 0;
        break;
      case 5:
        out.escape_spaces = field->value != 0;
        break;
      default:
        break;
    }
  }
}

void refuse_denormalizer(std::string_view message, const std::string& where) {
  WireReader reader = model_fields(message, where);
  while (const auto field = reader.next()) {
    if (field->number == 2 && !field->bytes.empty())
      unsupported_part(where, "rewrites decoded text with a denormalizer");
  }
}

void check_pieces(SentencePieceModel& model, const std::string& where) {
  using Type = SentencePieceModel::Type;
  std::unordered_set<std::string_view> searched, reserved;
  std::int32_t unknown = -1;
  for (std::size_t id = 0; id < model.pieces.size(); ++id) {
    const auto& piece = model.pieces[id];
    const bool in_text =
        piece.type == Type::Normal || piece.type == Type::UserDefined || piece.type == Type::Unused;
    if (!(in_text ? searched : reserved).insert(piece.text).second)
      refuse_part(where, fmt::format("has the piece \"{}\" twice", piece.text));
    if (piece.type != Type::Unknown) continue;
    if (unknown >= 0) refuse_part(where, "has two pieces for the unknown");
    unknown = static_cast<std::int32_t>(id);
  }
  if (unknown < 0) refuse_part(where, "has no piece for the unknown");
  model.unknown = unknown;
  for (int byte = 0; byte < 256 && model.byte_fallback; ++byte) {
    const std::string text = byte_token(static_cast<unsigned char>(byte));
    if (!reserved.contains(text)) refuse_part(where, fmt::format("has no piece {}", text));
  }
}

}  // namespace

bool looks_like_sentencepiece(std::string_view bytes) {
  return bytes.starts_with('\n');  // the tag of the first piece
}

SentencePieceModel read_sentencepiece(std::string_view bytes, const std::string& where) {
  SentencePieceModel out;
  WireReader reader = model_fields(bytes, where);
  while (const auto field = reader.next()) {
    if (!field->has_bytes) continue;
    switch (field->number) {
      case 1:
        if (static_cast<std::int64_t>(out.pieces.size()) >= Vocabulary::kLargestId)
          refuse_part(where, "has too many pieces");
        out.pieces.push_back(read_piece(field->bytes, where));
        break;
      case 2:
        read_trainer(field->bytes, where, out);
        break;
      case 3:
        read_normalization(field->bytes, where, out);
        break;
      case 5:
        refuse_denormalizer(field->bytes, where);
        break;
      default:
        break;
    }
  }
  check_pieces(out, where);
  return out;
}

}  // namespace tessera::text::tokenizers
