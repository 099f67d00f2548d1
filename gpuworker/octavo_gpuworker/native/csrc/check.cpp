// What a batch must be before any memory is touched; each fault names its field.
#include <cmath>
#include <string>

#include "step.h"

namespace octavo {
namespace {

std::string fault(const std::string &field, int64_t index, int64_t value, const std::string &expected) {
    return field + "[" + std::to_string(index) + "] is " + std::to_string(value) + "; expected " + expected;
}

std::string between(int64_t low, int64_t high) { return std::to_string(low) + " to " + std::to_string(high); }

std::string check_starts(const char *field, const int32_t *starts, int count, int64_t total) {
    if (starts[0] != 0) return fault(field, 0, starts[0], "0");
    for (int i = 0; i < count; ++i)
        if (starts[i + 1] < starts[i]) return fault(field, i + 1, starts[i + 1], "no less than the one before");
    if (total >= 0 && starts[count] != total) return fault(field, count, starts[count], std::to_string(total));
    return "";
}

std::string check_ids(const char *field, const int32_t *ids, int64_t count, int32_t limit) {
    for (int64_t i = 0; i < count; ++i)
        if (ids[i] < 0 || ids[i] >= limit) return fault(field, i, ids[i], between(0, limit - 1));
    return "";
}

std::string check_row(const OctavoBatch &batch, int row, int32_t vocab) {
    const auto at = [row](const char *field) { return std::string(field) + "[" + std::to_string(row) + "]"; };
    if (!std::isfinite(batch.temperature[row])) return at("temperature") + " is not finite";
    if (!(batch.top_p[row] > 0)) return at("top_p") + " is not above 0; expected 0 < top_p <= 1";
    if (!(batch.min_p[row] >= 0) || batch.min_p[row] > 1) return at("min_p") + " is outside 0 to 1";
    if (batch.top_k[row] < 0) return fault("top_k", row, batch.top_k[row], "0 (all) or more");
    const bool penalized = batch.history_start[row] < batch.history_start[row + 1];
    if (penalized && !(batch.repetition[row] > 0)) return at("repetition") + " is not above 0";
    if (penalized && (batch.prompt_len[row] < 0 ||
                      batch.prompt_len[row] > batch.history_start[row + 1] - batch.history_start[row]))
        return fault("prompt_len", row, batch.prompt_len[row], "0 to the length of the row's history");
    if (batch.logprobs[row] > batch.top_stride && batch.top_stride < vocab)
        return fault("logprobs", row, batch.logprobs[row], "at most " + std::to_string(batch.top_stride));
    if (batch.grammar_rows && batch.grammar_rows[row] >= batch.grammar_masks)
        return fault("grammar_rows", row, batch.grammar_rows[row], "below " + std::to_string(batch.grammar_masks));
    return "";
}

}  // namespace

std::string check_sampling(const OctavoBatch &batch, int32_t vocab) {
    if (auto text = check_starts("history_start", batch.history_start, batch.rows, -1); !text.empty()) return text;
    if (auto text = check_starts("bias_start", batch.bias_start, batch.rows, -1); !text.empty()) return text;
    if (auto text = check_ids("history", batch.history, batch.history_start[batch.rows], vocab); !text.empty()) return text;
    if (auto text = check_ids("bias_ids", batch.bias_ids, batch.bias_start[batch.rows], vocab); !text.empty()) return text;
    for (int row = 0; row < batch.rows; ++row)
        if (auto text = check_row(batch, row, vocab); !text.empty()) return text;
    return "";
}

std::string Step::check(const OctavoBatch &batch) const {
    const int limit = MAX_UNITS;
    if (batch.tokens < 1 || batch.tokens > limit) return "tokens is " + std::to_string(batch.tokens) + "; expected " + between(1, limit);
    if (batch.sequences < 1) return "sequences is " + std::to_string(batch.sequences) + "; expected 1 or more";
    if (batch.rows < 0 || batch.rows > limit) return "rows is " + std::to_string(batch.rows) + "; expected " + between(0, limit);
    if (auto text = check_starts("query_start", batch.query_start, batch.sequences, batch.tokens); !text.empty()) return text;
    if (auto text = check_ids("token_ids", batch.token_ids, batch.tokens, config_.vocab); !text.empty()) return text;
    if (auto text = check_ids("sample_rows", batch.sample_rows, batch.rows, batch.tokens); !text.empty()) return text;
    for (int s = 0; s < batch.sequences; ++s) {
        const int new_tokens = batch.query_start[s + 1] - batch.query_start[s], context = batch.context_len[s];
        const int64_t room = static_cast<int64_t>(batch.table_stride) * config_.block_tokens;
        if (context < new_tokens || context < 0) return fault("context_len", s, context, "the new tokens included, at least " + std::to_string(new_tokens));
        if (context > room) return fault("context_len", s, context, "at most the " + std::to_string(room) + " positions of its block table");
        const int64_t used = (static_cast<int64_t>(context) + config_.block_tokens - 1) / config_.block_tokens;
        const int64_t at = static_cast<int64_t>(s) * batch.table_stride;
        for (int64_t b = 0; b < used; ++b) {
            const int32_t block = batch.block_tables[at + b];
            if (block < 0 || block >= config_.num_blocks)
                return fault("block_tables[" + std::to_string(s) + "]", b, block, between(0, config_.num_blocks - 1));
        }
    }
    return check_sampling(batch, config_.vocab);
}

}  // namespace octavo
