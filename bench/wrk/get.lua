-- A GET without a body.
dofile("report.lua")
