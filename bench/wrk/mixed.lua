-- GETs without a body: nineteen of twenty ask the same, and each twentieth what nobody has asked before.
local turn, began = 0, os.time()
request = function()
    turn = turn + 1
    if turn % 20 == 0 then
        return wrk.format(nil, wrk.path .. "?q=" .. began .. "-" .. turn)
    end
    return wrk.format()
end
dofile("report.lua")
