// SPDX-License-Identifier: Apache-2.0
// Records of SuperGLUE as they are downloaded, as records of a text (or two) and a label.
#pragma once

#include <vector>

#include "tessera/data/records.h"

namespace tessera::tasks {

/// The records with "sentence1", "sentence2" (or "text") and "label" that a record of SuperGLUE
/// means; the record itself if it is of another kind, such as BoolQ, CB and RTE, whose fields are
/// texts already. Records without labels have none afterwards.
///
/// - COPA: the premise with the question, and both choices; the label is 0 or 1.
/// - MultiRC: for each answer of each question the paragraph, and question and answer.
/// - ReCoRD: for each entity of each query the passage, and the query with the entity in the place
///   of "@placeholder"; the label is true if the entity is an answer.
/// - WiC: both sentences with the word marked: "the * bed * of the river".
/// - WSC: the text with both spans marked: "* Mark * told # him #".
///
/// Marks and the removal of markup are those of T5 (Raffel et al. 2020). Throws Error{Data} with
/// the record's place for fields of other types and positions outside of the text.
std::vector<data::Record> superglue_records(const data::Record& record);

}  // namespace tessera::tasks
