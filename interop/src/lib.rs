//! Referees that share no code with uiw: RFC vectors, tshark, siw captures.
